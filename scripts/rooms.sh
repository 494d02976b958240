#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# scripts/rooms.sh [-v]: what depends on what in src/. Prints its rooms, which are its folders, and the rooms that each
# one includes or calls; with -v also files. A file here is what lies beside each other under one name: x.c with x.h. It
# depends on another whose header it includes, or whose functions or data it names. The latter is read from the objects
# in BUILD (build); without objects includes are all that is known.
#
# Fails if
#   - files of base/, exchange/, exchange/cpu/ and path/ depend on each other in a circle: waiting, paths to peers and
#     exchanges among them. What is called through a table (exchange/ops.h) is no dependency of the caller's;
#   - a file of src/ includes anything of bench/, testkit/, soak/, cli/, tests/ or examples/;
#   - a file of src/ outside src/gpu/cuda includes anything of src/gpu/cuda;
#   - a file of src/ outside src/gpu includes anything of src/gpu but gpu/host/device.h.
command -v python3 >/dev/null || { echo "python3 is not installed"; exit 77; }
command -v nm >/dev/null || { echo "nm is not installed"; exit 77; }
cd "$(dirname "$0")/.." && exec python3 - "${BUILD:-build}" "$@" <<'END'
import collections, os, re, subprocess, sys

JUDGED = ("base", "exchange", "exchange/cpu", "exchange/cpu/kernels", "path")
OUTSIDE = ("bench/", "testkit/", "soak/", "cli/", "tests/", "examples/")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
build, verbose = sys.argv[1], "-v" in sys.argv[2:]
faults = 0

def fault(text):
    global faults
    faults += 1
    print("FAULT:", text)

def name(path): # exchange/cpu/liveness of src/exchange/cpu/liveness.c
    return os.path.splitext(os.path.relpath(path, "src"))[0]

def room(unit):
    return os.path.dirname(unit)

def sources():
    for folder, _, files in sorted(os.walk("src")):
        for file in sorted(files):
            if file.endswith((".c", ".h", ".cu", ".cuh")):
                yield os.path.join(folder, file)

def check_include(path, included):
    if included.startswith(OUTSIDE):
        fault(f"{path} includes {included}, which is not of the library")
    if included.startswith("gpu/cuda/") and not path.startswith("src/gpu/cuda/"):
        fault(f"{path} includes {included}, of libtern_cuda.so")
    elif included.startswith("gpu/") and not path.startswith("src/gpu/") and included != "gpu/host/device.h":
        fault(f"{path} includes {included}, of src/gpu")

def included_units(path):
    with open(path, encoding="utf-8") as file:
        for included in INCLUDE.findall(file.read()):
            for base in ("", "src", os.path.dirname(path)):
                found = os.path.normpath(os.path.join(base, included))
                if os.path.isfile(found):
                    check_include(path, os.path.relpath(found, "src") if found.startswith("src/") else found)
                    if found.startswith("src/"):
                        yield name(found)
                    break

def symbols(objects):
    """{object: (defined, undefined)}"""
    of = {path: (set(), set()) for path in objects}
    listing = subprocess.run(["nm", "-A", "-P"] + objects, capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        path, rest = line.split(": ", 1)
        symbol, kind = rest.split()[:2]
        if kind == "U":
            of[path][1].add(symbol)
        elif kind.isupper() or kind == "i":
            of[path][0].add(symbol)
    return of

def circles(arrows, units):
    """The sets of units that all reach each other: Tarjan's."""
    index, low, stack, found = {}, {}, [], []
    def visit(unit):
        index[unit] = low[unit] = len(index)
        stack.append(unit)
        for to in sorted(arrows[unit] & units):
            if to not in index:
                visit(to)
            if to in stack:
                low[unit] = min(low[unit], low[to])
        if low[unit] == index[unit]:
            at = stack.index(unit)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]
    for unit in sorted(units):
        if unit not in index:
            visit(unit)
    return found

def shortest(circle):
    """A way round: breadth first from each of its units."""
    best = None
    for start in circle:
        came, queue = {start: None}, [start]
        for unit in queue:
            if start in arrows[unit] and unit != start:
                way = [start]
                while unit is not None:
                    way.append(unit)
                    unit = came[unit]
                best = way[::-1] if best is None or len(way) < len(best) else best
                break
            for to in sorted(arrows[unit] & set(circle) - set(came)):
                came[to] = unit
                queue.append(to)
    return " -> ".join(best)

arrows = collections.defaultdict(set)
files = list(sources())
units = {name(path) for path in files}
for path in files:
    arrows[name(path)].update(set(included_units(path)) - {name(path)})

objects = {f"{build}/obj/{os.path.splitext(path)[0]}.o": name(path) for path in files if path.endswith(".c")}
objects = {path: unit for path, unit in objects.items() if os.path.exists(path)}
if objects:
    tables = symbols(sorted(objects))
    # libtern_cuda.so is linked by itself, and defines some of the names again.
    cuda = {path for path in tables if objects[path].startswith("gpu/cuda/")}
    owner = {s: objects[path] for path in sorted(tables.keys() - cuda) for s in tables[path][0]}
    owner_there = owner | {s: objects[path] for path in sorted(cuda) for s in tables[path][0]}
    for path, (_, wanted) in tables.items():
        known = owner_there if path in cuda else owner
        arrows[objects[path]].update({known[s] for s in wanted if s in known} - {objects[path]})
else:
    print(f"no objects in {build}: includes alone")

rooms = collections.defaultdict(set)
for unit in units:
    rooms[room(unit)].update({room(to) for to in arrows[unit]} - {room(unit)})
    if verbose:
        print(unit, "->", *sorted(arrows[unit]))
for here in sorted(rooms):
    print(f"{here or '.'} -> {' '.join(sorted(rooms[here])) or '-'}")
for circle in circles(arrows, units):
    text = f"{shortest(circle)}   (of {len(circle)}: {' '.join(circle)})"
    if any(room(unit) in JUDGED for unit in circle):
        fault(f"a circle: {text}")
    else:
        print(f"a circle, not judged: {text}")
for circle in circles(rooms, set(rooms)):
    print(f"rooms in a circle: {' '.join(circle)}")
print(f"{len(units)} files in {len(rooms)} rooms, {sum(map(len, arrows.values()))} arrows from {len(objects)} objects "
      f"and includes, {faults} faults")
sys.exit(faults > 0 or not units)
END
