#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How published engines call deep_ep: python/tests/deep_ep_calls.json, which a test binds to the signatures of tern_ep.deep_ep.

    scripts/deep_ep_calls.py [--only PACKAGE] [PACKAGE==VERSION=PATH ...] > python/tests/deep_ep_calls.json

fetches the wheels of PACKAGES one by one with pip, reads them and deletes them; a PATH is a wheel, an sdist or a folder that is there
already. Kept are callee, number of positional arguments and names, and in which packages; no source text.
"""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

PACKAGES = {
    "vllm": "0.20.2 0.22.1 0.23.0 0.24.0 0.25.1 0.26.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0".split(),
    "sglang": ["0.5.23"],
    "megatron-core": ["0.16.1", "0.17.1", "0.18.2", "0.19.2"],
    "torchtitan": ["0.2.0", "0.2.1", "0.2.2", "0.3.0"],
}
PLATFORMS = ["any", "manylinux_2_28_x86_64", "manylinux_2_31_x86_64", "manylinux_2_34_x86_64", "manylinux_2_35_x86_64", "manylinux1_x86_64"]

# Methods that nobody else has, and those that are Buffer's where the object is called so.
OWN = """get_dispatch_layout low_latency_dispatch low_latency_combine clean_low_latency_buffer get_next_low_latency_combine_buffer
low_latency_update_mask_buffer low_latency_query_mask_buffer low_latency_clean_mask_buffer get_low_latency_rdma_size_hint set_num_sms
get_dispatch_config get_combine_config internode_dispatch internode_combine get_local_buffer_tensor get_comm_stream""".split()
SHARED = ["dispatch", "combine", "capture", "destroy"]
CONFIG = ["get_nvl_buffer_size_hint", "get_rdma_buffer_size_hint"]
CLASSES = ["Buffer", "Config", "EventOverlap", "EventHandle"]
OTHERS = ("ElasticBuffer", "hybrid", "Hybrid", "nixl", "mori", "zbal", "npu")


class Call(NamedTuple):
    callee: str
    positional: int
    keywords: Tuple[str, ...]
    optional: Tuple[str, ...]
    """Given in some cases alone."""


def keys_of(node: Any) -> Optional[Set[str]]:
    """Of a dict that is written out."""
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        return {str(key.value) for key in node.keys if isinstance(key, ast.Constant)}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
        return {keyword.arg for keyword in node.keywords if keyword.arg}
    return None


def dotted(node: Any) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    if isinstance(node, ast.Call):
        return dotted(node.func) + "()"
    return "?"


class Reader(ast.NodeVisitor):
    def __init__(self, tree: Any):
        self.calls: Set[Call] = set()
        self.taken: Set[str] = set()
        """What the file imports from deep_ep."""
        self.dicts: Dict[str, List[Set[str]]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "deep_ep":
                self.taken.update(name.asname or name.name for name in node.names)
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._assigned(node.targets[0], node.value)
        self.visit(tree)

    def _assigned(self, target: Any, value: Any) -> None:
        for one in (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,):
            keys = keys_of(one)
            if isinstance(target, ast.Name) and keys is not None:
                self.dicts.setdefault(target.id, []).append(keys)
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            self.dicts.setdefault(dotted(target.value), []).append({str(target.slice.value)})

    def _starred(self, node: Any) -> Tuple[Set[str], Set[str]]:
        """Names that are always given by **node, and those that may be."""
        keys = keys_of(node)
        if keys is not None:
            return keys, set()
        if isinstance(node, ast.IfExp):
            one, other = self._starred(node.body), self._starred(node.orelse)
            return one[0] & other[0], one[1] | other[1] | (one[0] ^ other[0])
        if isinstance(node, ast.Name) and node.id in self.dicts:
            found = self.dicts[node.id]
            always = set.intersection(*(keys for keys in found if len(keys) != 1 or len(found) == 1)) if any(len(k) != 1 for k in found) else set()
            return always, set().union(*found) - always
        return set(), set()

    def _callee(self, func: Any) -> Optional[str]:
        if isinstance(func, ast.Name):
            return func.id if func.id in CLASSES and func.id in self.taken else None
        if not isinstance(func, ast.Attribute):
            return None
        owner = dotted(func.value)
        if any(other in owner for other in OTHERS):
            return None
        if func.attr in CLASSES and owner == "deep_ep":
            return func.attr
        if func.attr in OWN or (func.attr in SHARED and owner.lower().split(".")[-1].rstrip("()") in ("buffer", "_buffer")):
            return f"Buffer.{func.attr}"
        if func.attr in CONFIG:
            return f"Config.{func.attr}"
        return None

    def visit_Call(self, node: ast.Call) -> None:
        callee = self._callee(node.func)
        keys = keys_of(node)
        if callee is not None and not any(isinstance(argument, ast.Starred) for argument in node.args):
            keywords, optional = {keyword.arg for keyword in node.keywords if keyword.arg}, set()
            for keyword in node.keywords:
                if keyword.arg is None:
                    always, some = self._starred(keyword.value)
                    keywords |= always
                    optional |= some
            self.calls.add(Call(callee, len(node.args), tuple(sorted(keywords)), tuple(sorted(optional))))
        elif keys is not None and {"group", "num_nvl_bytes"} <= keys:  # what a cache makes a Buffer of
            self.calls.add(Call("Buffer", 0, tuple(sorted(keys)), ()))
        self.generic_visit(node)


def calls_of(text: str) -> Set[Call]:
    if "deep_ep" not in text.lower() and "deepep" not in text.lower():
        return set()
    tree = ast.parse(text)
    names = {name.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "deep_ep" for name in node.names}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and dotted(node.value) == "deep_ep"}
    return Reader(tree).calls if "Buffer" in names else set()  # ElasticBuffer is of version 2


def sources(path: Path) -> Iterator[Tuple[str, str]]:
    if path.is_dir():
        for file in sorted(path.rglob("*.py")):
            yield str(file.relative_to(path)), file.read_text(errors="replace")
    elif path.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):
                if name.endswith(".py"):
                    yield name, archive.read(name).decode(errors="replace")
    else:
        with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() and member.name.endswith(".py") else None
                if file is not None:
                    yield member.name, file.read().decode(errors="replace")


def fetched(package: str, version: str, room: str) -> Path:
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--python-version", "3.12", *platforms, "-d", room]
    subprocess.run([*command, f"{package}=={version}"], check=True, stdout=sys.stderr)
    return next(Path(room).iterdir())


def given(words: List[str]) -> Iterator[Tuple[str, str, Optional[Path]]]:
    if words and words[0] != "--only":
        for word in words:
            name, path = word.rsplit("=", 1)
            package, version = name.split("==")
            yield package, version, Path(path)
        return
    for package, versions in PACKAGES.items():
        if not words or package == words[1]:
            for version in versions:
                yield package, version, None


def main(words: List[str]) -> None:
    seen: Dict[Call, Dict[str, List[str]]] = {}
    for package, version, path in given(words):
        with tempfile.TemporaryDirectory() as room:
            found = set().union(*(calls_of(text) for _, text in sources(path or fetched(package, version, room))))
        print(f"{package} {version}: {len(found)} shapes", file=sys.stderr)
        for call in found:
            seen.setdefault(call, {}).setdefault(package, []).append(version)
    shapes = [{**call._asdict(), "in": where} for call, where in sorted(seen.items(), key=lambda item: item[0])]
    print("[\n" + ",\n".join(json.dumps(shape) for shape in shapes) + "\n]")


if __name__ == "__main__":
    main(sys.argv[1:])
