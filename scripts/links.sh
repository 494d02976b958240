#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Looks after links: every relative link of a Markdown page, and every docs/... file that any text names, must be there,
# with its #anchor. Anchors are made of headings as GitHub makes them.
command -v python3 >/dev/null || { echo "python3 is not installed"; exit 77; }
cd "$(dirname "$0")/.." && exec python3 - <<'END'
import os, re, subprocess, sys

LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^]]+\]:\s*(\S+)", re.M)
NAMED = re.compile(r"(?<![\w/.-])docs/(?:[\w-]+/)*[\w-]+\.\w+(?:#[\w-]+)?")

def without_code(text):
    text = re.sub(r"^(```|~~~).*?^\1", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", text)

def anchors(text, known={}):
    if text not in known:
        found = set(re.findall(r'<a id="([^"]+)">', text))
        for title in re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M):
            title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).strip().lower()
            slug = name = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
            again = 0
            while name in found:
                again += 1
                name = f"{slug}-{again}"
            found.add(name)
        known[text] = found
    return known[text]

def pages():
    """What git knows or would take; without git, all but hidden folders and builds, which have a file "features"."""
    git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(git, capture_output=True, check=True, text=True).stdout.split("\0")
        return [page for page in sorted(set(listed)) if os.path.isfile(page)]
    except (OSError, subprocess.CalledProcessError):
        pass
    found = []
    for folder, folders, files in os.walk("."):
        folders[:] = [n for n in folders if n[0] != "." and not os.path.exists(os.path.join(folder, n, "features"))]
        found += [os.path.normpath(os.path.join(folder, name)) for name in files]
    return sorted(found)

def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError: # no text
        return ""

def fault(target, folder, page):
    path, _, anchor = target.partition("#")
    path = os.path.normpath(os.path.join(folder, path)) if path else page
    if not os.path.exists(path):
        return "no such file"
    if anchor and path.endswith(".md") and anchor not in anchors(read(path)):
        return f"{path} has no such heading"

links = faults = 0
for page in pages():
    text = read(page)
    targets = [(m, m[0], ".") for m in NAMED.finditer(text)]
    if page.endswith(".md"):
        text = without_code(text)
        targets += [(m, m[1] or m[2], os.path.dirname(page)) for m in LINK.finditer(text) if ":" not in (m[1] or m[2])]
    for match, target, base in targets:
        links += 1
        why = fault(target, base, page)
        if why:
            faults += 1
            line = match.string.count("\n", 0, match.start()) + 1
            print(f"{page}:{line}: {target}: {why}")
print(f"{links} links, {faults} broken")
sys.exit(faults > 0 or links == 0)
END
