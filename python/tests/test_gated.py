# SPDX-License-Identifier: Apache-2.0
"""examples/triton: the kernel in Triton's interpreter, behind gates that the test makes; and that there is code of it for a GPU."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, List, Tuple

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

TREE = Path(os.environ.get("TERN_TREE", Path(__file__).resolve().parents[2]))
HIDDEN, TILE, WHOLE = 80, 64, 3 * 64
ROWS = (70, 0, 5)
FIRST = (8, 80, 90)  # with gaps
MISSING = 7.0  # what y has where nothing was computed


def gated() -> Any:
    sys.path.insert(0, str(TREE / "examples" / "triton"))
    import gated as example

    return example


def in_its_interpreter(name: str) -> None:
    """Whether triton compiles is decided as it is imported."""
    code = f"import test_gated; test_gated.{name}()"
    place = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": place}, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


def words(values: List[int]) -> Any:
    return torch.tensor([v - 2**32 if v >= 2**31 else v for v in values], dtype=torch.int32)


class Fake:
    """What a dispatch of round `number` leaves behind."""

    def __init__(self, number: int):
        import tern_ep

        random = torch.Generator().manual_seed(number % 97)
        self.x = torch.randn(96, HIDDEN, generator=random)
        self.weights = torch.randn(len(ROWS), HIDDEN, HIDDEN, generator=random)
        self.counts, self.offsets = words(list(ROWS)), torch.tensor(FIRST, dtype=torch.int64)
        self.words, self.failed = words([number, number]), words([0])
        self.ready = words([number * WHOLE % 2**32] * 6)
        self.gate = tern_ep.Gate(
            nr_local=len(ROWS), tile_rows=TILE, tiles=2, whole=WHOLE, wait_ns=20000, counts=self.counts.data_ptr(), offsets=self.offsets.data_ptr(),
            words=self.words.data_ptr(), ready=self.ready.data_ptr(), done=0, failed=self.failed.data_ptr(),
        )  # fmt: skip

    def run(self, with_gates: bool = True, programs: int = 3) -> Any:
        y = torch.full(self.x.shape, MISSING)
        gated().run(self.x, self.weights, y, self.gate, with_gates, programs)
        return y

    def wanted(self, without: Tuple[Tuple[int, int], ...] = ()) -> Any:
        """without: (expert, tile)s that are not computed."""
        y = torch.full(self.x.shape, MISSING)
        for expert, (rows, first) in enumerate(zip(ROWS, FIRST)):
            for tile in range(-(-rows // TILE)):
                these = slice(first + tile * TILE, first + min(rows, (tile + 1) * TILE))
                if (expert, tile) not in without:
                    y[these] = self.x[these] @ self.weights[expert].T
        return y


def near(made: Any, wanted: Any) -> bool:
    return bool(torch.allclose(made, wanted, atol=1e-3))


def products() -> None:
    for number in (1, 2, 2**31 // WHOLE, 2**32 - 1):  # words go round
        for with_gates in (False, True):
            fake = Fake(number)
            assert near(fake.run(with_gates), fake.wanted()), (number, with_gates)


def waits() -> None:
    """What has not come is not read, and no wait lasts for ever."""
    late = Fake(5)
    late.ready[1] -= 1  # one segment of one row
    assert near(late.run(programs=1), late.wanted(without=((0, 1), (2, 0))))
    assert near(late.run(programs=3), late.wanted(without=((0, 1),)))  # another program has the last expert
    uncounted = Fake(5)
    uncounted.words[1] = 4
    assert bool((uncounted.run() == MISSING).all())
    failed = Fake(5)
    failed.ready[:] = 4 * WHOLE
    failed.failed[0] = 1
    assert bool((failed.run() == MISSING).all())
    blind = Fake(5)
    blind.ready[:] = 4 * WHOLE
    assert near(blind.run(with_gates=False), blind.wanted())


def test_products() -> None:
    in_its_interpreter("products")


def test_waits() -> None:
    in_its_interpreter("waits")


def test_there_is_code_for_a_gpu() -> None:
    """Waits are loads that acquire, and the kernel ends behind the one ahead."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {**dict.fromkeys(("x", "weights", "y"), "*bf16"), **dict.fromkeys(("nr_local", "tiles", "whole", "looks"), "i32")}
    signature.update(dict.fromkeys(("counts", "offsets", "words", "ready", "failed"), "i64"))
    constants = {"HIDDEN": 2048, "TILE": 128, "COLUMNS": 128, "DEPTH": 64, "GATED": True, "EARLY": True}
    kernel = gated().grouped
    order = {name: signature.get(name, "constexpr") for name in kernel.arg_names}
    made = triton.compile(ASTSource(kernel, order, constexprs=constants), target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
    ptx = made.asm["ptx"]
    assert "ld.global.gpu.acquire" in ptx or "acquire.gpu" in ptx or "atom.global.gpu.acquire" in ptx
    assert ptx.rindex("griddepcontrol.wait") > ptx.rindex("st.global")
    assert len(made.asm["cubin"]) > 1000
