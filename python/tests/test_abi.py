# SPDX-License-Identifier: Apache-2.0
"""tern_ep/_abi.py against include/tern.h. The header is read for what there is, and a C compiler says where it lies: a struct, field,
enumerator, constant or function that is new, gone, moved or of another size fails here."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

import tern_ep
from tern_ep import _abi, arrays, errors

HEADERS = [Path(os.environ.get("TERN_INCLUDE", Path(__file__).resolve().parents[2] / "include")) / name for name in ("tern.h", "tern_engine.h", "tern_balance.h", "tern_weights.h", "tern_layer.h")]
if not HEADERS[0].exists():
    pytest.skip("tern.h is not here; set TERN_INCLUDE", allow_module_level=True)


def source() -> str:
    text = re.sub(r"/\*.*?\*/", " ", "\n".join(header.read_text() for header in HEADERS), flags=re.S)
    return re.sub(r"TERN_SIZE_OF\(\w+\)|//.*", " ", text)


SOURCE = source()


def structs() -> Dict[str, List[str]]:
    found = {}
    for name, body in re.findall(r"\bstruct\s+(\w+)\s*\{(.*?)\}\s*;", SOURCE, flags=re.S):
        body = re.sub(r"struct\s*\{.*?\}", "nested", body, flags=re.S)
        members = [m.strip() for part in body.split(";") for m in ([part] if "(" in part else part.split(",")) if m.strip()]
        found[name] = [re.search(r"\(\s*\*\s*(\w+)\s*\)", m) or re.search(r"(\w+)\s*(?:\[[^\]]*\])?$", m) for m in members]
        found[name] = [match.group(1) for match in found[name]]
    return found


def enums() -> Dict[str, List[str]]:
    return {
        name: re.findall(r"\b(TERN_\w+)\b\s*(?:=[^,}]*)?(?:,|$|\s*$)", body.strip(), flags=re.M)
        for name, body in re.findall(r"\benum\s+(\w+)\s*\{(.*?)\}", SOURCE, flags=re.S)
    }


def functions() -> Dict[str, Tuple[str, List[str]]]:
    found = {}
    for result, name, arguments in re.findall(r"TERN_API\s+([\w\s*]*?[\s*])(\w+)\s*\(([^;]*)\)\s*;", SOURCE, flags=re.S):
        given = [" ".join(a.split()) for a in arguments.split(",")]
        found[name] = (result.strip(), [] if given == ["void"] else given)
    return found


def constants() -> List[str]:
    return re.findall(r"#define\s+(TERN_\w+)\s+\d+", SOURCE)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, int]:
    """What a compiler says of every struct, field, enumerator and constant."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    lines = []
    for struct, fields in structs().items():
        lines.append(f'\tprintf("{struct} %zu\\n", sizeof(struct {struct}));')
        for field in fields:
            lines.append(f'\tprintf("{struct}.{field} %zu\\n", offsetof(struct {struct}, {field}));')
            lines.append(f'\tprintf("{struct}.{field}:size %zu\\n", sizeof(((struct {struct} *)0)->{field}));')
    for name in [e for names in enums().values() for e in names] + constants():
        lines.append(f'\tprintf("{name} %d\\n", (int){name});')
    room = tmp_path_factory.mktemp("abi")
    (room / "abi.c").write_text('#include "tern_weights.h"\n#include "tern_layer.h"\n#include <stdio.h>\nint main(void)\n{\n' + "\n".join(lines) + "\n\treturn 0;\n}\n")
    subprocess.run([compiler, "-I", str(HEADERS[0].parent), "-o", str(room / "abi"), str(room / "abi.c")], check=True)
    said = subprocess.run([str(room / "abi")], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.rsplit(" ", 1) for line in said.splitlines())}


def test_the_header_was_understood() -> None:
    assert len(structs()) >= 11 and len(enums()) >= 9 and len(functions()) >= 35
    assert len(re.findall(r"^TERN_API ", SOURCE, flags=re.M)) == len(functions()) and len(re.findall(r"\benum\s+\w+\s*\{", SOURCE)) == len(enums())


def test_structs(told: Dict[str, int]) -> None:
    here = {struct.__name__: struct for struct in _abi.STRUCTS}
    assert sorted(here) == sorted(structs())
    for name, struct in here.items():
        assert ctypes.sizeof(struct) == told[name], name
        assert [field for field, _ in struct._fields_] == structs()[name], name
        for field, kind in struct._fields_:
            assert getattr(struct, field).offset == told[f"{name}.{field}"], f"{name}.{field}"
            assert ctypes.sizeof(kind) == told[f"{name}.{field}:size"], f"{name}.{field}"


def test_enums(told: Dict[str, int]) -> None:
    assert {name: sorted(values) for name, values in _abi.ENUMS.items()} == {name: sorted(values) for name, values in enums().items()}
    for values in _abi.ENUMS.values():
        for name, value in values.items():
            assert told[name] == value, name


PUBLIC = {
    "tern_path": tern_ep.Path,
    "tern_dtype": tern_ep.Dtype,
    "tern_scale": tern_ep.Scale,
    "tern_mode": tern_ep.Mode,
    "tern_layout": tern_ep.Layout,
    "tern_reduce": tern_ep.Reduce,
    "tern_replicas": tern_ep.Replicas,
    "tern_weights": tern_ep.Weights,
    "tern_change": tern_ep.Change,
    "tern_activation": tern_ep.Activation,
    "tern_phase": tern_ep.Phase,
    "tern_device": tern_ep.Device,
}


def test_public_enums() -> None:
    assert sorted([*PUBLIC, "tern_error", "tern_op_flags", "tern_signal_policy"]) == sorted(_abi.ENUMS)
    for name, public in PUBLIC.items():
        due = {c_name: value for c_name, value in _abi.ENUMS[name].items()}
        assert sorted(member.value for member in public) == sorted(due.values()), name
        for member in public:
            assert any(c_name.endswith("_" + member.name) for c_name, value in due.items() if value == member.value), member
    assert sorted(errors.CLASSES) == sorted(v for v in _abi.ENUMS["tern_error"].values() if v)


C_TYPES = {"enum tern_signal_policy": ctypes.c_int, "uint64_t": ctypes.c_uint64, "tern_op": ctypes.c_uint64, "int": ctypes.c_int, "uint32_t": ctypes.c_uint32, "int32_t": ctypes.c_int32, "size_t": ctypes.c_size_t}


def test_functions() -> None:
    assert sorted(_abi.FUNCTIONS) == sorted(functions())
    for name, (result, arguments) in functions().items():
        there, given = _abi.FUNCTIONS[name]
        assert there is {"int": ctypes.c_int, "const char *": ctypes.c_char_p, "uint64_t": ctypes.c_uint64, "void": None}[result], name
        assert len(given) == len(arguments), name
        for kind, argument in zip(given, arguments):
            if "*" in argument or argument.startswith("tern_done_fn"):
                assert ctypes.sizeof(kind) == ctypes.sizeof(ctypes.c_void_p), f"{name}: {argument}"
            else:
                assert kind is C_TYPES[argument.rsplit(" ", 1)[0]], f"{name}: {argument}"


def test_constants(told: Dict[str, int]) -> None:
    assert _abi.TERN_MAX_TOPK == told["TERN_MAX_TOPK"]
    version = ".".join(str(told[f"TERN_VERSION_{part}"]) for part in ("MAJOR", "MINOR", "PATCH"))
    assert tern_ep.__version__ == version
    assert _abi.TERN_MAX_NICS == told["TERN_MAX_NICS"]
    assert _abi.TERN_WEIGHTS_MAX_PARTS == told["TERN_WEIGHTS_MAX_PARTS"]
    assert sorted(constants()) == ["TERN_MAX_NICS", "TERN_MAX_TOPK", "TERN_VERSION_MAJOR", "TERN_VERSION_MINOR", "TERN_VERSION_PATCH", "TERN_WEIGHTS_MAX_PARTS"]


def test_defaults_are_the_librarys() -> None:
    lib = tern_ep._library.library()
    ours, theirs = tern_ep.Config().struct(), lib.initial(_abi.tern_moe_config)
    for field, _ in _abi.tern_moe_config._fields_:
        if field != "placement":
            assert getattr(ours, field) == getattr(theirs, field), field


@pytest.mark.parametrize("struct", [_abi.tern_group_config, _abi.tern_moe_config])
@pytest.mark.parametrize("known", [64, -8, 0, 16])
def test_init_writes_what_the_package_knows(struct: Any, known: int) -> None:
    """Also where the library knows more, or less: 64 bytes of it, or 8 less or 16 more than it does."""
    bytes_known = known if known > 16 else ctypes.sizeof(struct) + known
    room = (ctypes.c_ubyte * (ctypes.sizeof(struct) + 64))(*[0xA5] * (ctypes.sizeof(struct) + 64))
    config = struct.from_buffer(room)
    getattr(tern_ep._library.library(), struct.__name__ + "_init_sized")(ctypes.byref(config), bytes_known)
    assert config.size == bytes_known
    assert all(byte == 0xA5 for byte in room[bytes_known:])


def test_dtype_tables_are_complete() -> None:
    assert set(arrays.ELEMENT_BYTES) == set(arrays.NAMES) == set(tern_ep.Dtype)
