# SPDX-License-Identifier: Apache-2.0
"""Models of transformers over Tern, on the CPU: tests/transformers_rank.py is what each rank runs. Skipped where transformers is not
installed."""

from __future__ import annotations

import importlib
import inspect
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator, List, Tuple

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import tern_ep  # noqa: E402
from tern_ep._library import library  # noqa: E402

RANK = Path(__file__).with_name("transformers_rank.py")


def environment() -> Any:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mine = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "TERN_LIBRARY": str(Path(library().path).resolve())}
    return {**os.environ, **mine, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}


def start(nr_ranks: int, *arguments: str) -> "List[subprocess.Popen[str]]":
    env = {**environment(), "WORLD_SIZE": str(nr_ranks)}
    return [
        subprocess.Popen(
            [sys.executable, str(RANK), *arguments], env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(nr_ranks)
    ]


def finish(ranks: "List[subprocess.Popen[str]]") -> List[Tuple[int, str]]:
    """Every rank's end. A wait of Tern's is bounded; what is not, whoever runs the tests bounds."""
    try:
        told = [rank.communicate()[0] for rank in ranks]
        return [(rank.returncode, text) for rank, text in zip(ranks, told)]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.parametrize("nr_ranks", [1, 2, 3, 4])
def test_logits_and_generate(nr_ranks: int, tmp_path: Path) -> None:
    for code, text in finish(start(nr_ranks, "logits", str(tmp_path))):
        assert code == 0, text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("what", ["logits", "training", "by_layer"])
def test_on_a_gpu(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERN_TEST_DEVICE", "cuda")
    for code, text in finish(start(2, what, str(tmp_path))):
        assert code == 0, text


def test_experts_by_layer(tmp_path: Path) -> None:
    for code, text in finish(start(2, "by_layer", str(tmp_path))):
        assert code == 0, text


@pytest.mark.parametrize("what", ["own_batches", "sharded"])
def test_other_models_and_fsdp(what: str, tmp_path: Path) -> None:
    for code, text in finish(start(2, what, str(tmp_path))):
        assert code == 0, text


def test_training(tmp_path: Path) -> None:
    for code, text in finish(start(2, "training", str(tmp_path))):
        assert code == 0, text


@pytest.mark.parametrize("where", ["killed_in_generate", "killed_in_backward"])
def test_a_killed_rank_is_named(where: str, tmp_path: Path) -> None:
    told = finish(start(3, where, str(tmp_path)))
    assert [code for code, _ in told] == [0, -signal.SIGKILL, 0], "\n".join(text for _, text in told)


# ---- what transformers is built on ----------------------------------------------------------------------------------

SIGNATURES = {
    "distributed.expert_parallel.EPImplementation.__init__": "self, experts, ep_mesh, tp_mesh",
    "distributed.expert_parallel.EPImplementation.__call__": "self, hidden_states, top_k_index, top_k_weights",
    "distributed.expert_parallel.EPImplementationInterface.register": "key, value",
    "distributed.expert_parallel.EpDispatchExpertsParallel.install_forward": "self, module, ep_mesh, *, tp_mesh, ep_implementation='auto'",
    "distributed.expert_parallel.apply_expert_parallelism": "model, ep_mesh, tp_mesh, plan, ep_implementation='auto'",
    "distributed.mixin.DistributedMixin._expand_parallel_plan": "self, plan",
    "integrations.moe._default_apply_gate": "self, gate_up_out",
}


def test_signatures() -> None:
    """Says what of transformers has drifted from what tern_ep.transformers was written for."""
    drifted = []
    for name, expected in SIGNATURES.items():
        folder, module, *path = name.split(".")
        found: Any = importlib.import_module(f"transformers.{folder}.{module}")
        for part in path:
            found = getattr(found, part, None)
        told = "it is gone"
        if found is not None:
            given = inspect.signature(found)
            plain = [p.replace(annotation=inspect.Parameter.empty) for p in given.parameters.values()]
            told = str(given.replace(parameters=plain, return_annotation=inspect.Signature.empty))[1:-1]
        if told != expected:
            drifted.append(f"{name}: ({expected}) is now ({told})")
    assert not drifted, f"transformers {transformers.__version__}: " + "; ".join(drifted)


def test_experts_have_what_is_read() -> None:
    from transformers_rank import CONFIGS, whole

    for kind in CONFIGS:
        experts = whole(kind).model.layers[0].mlp.experts
        wanted = ["config", "num_experts", "has_gate", "has_bias", "is_transposed", "gate_up_proj", "down_proj", "_apply_gate"]
        wanted += ["gate_up_proj_bias", "down_proj_bias"] if experts.has_bias else []
        assert [name for name in wanted if not hasattr(experts, name)] == []
        assert "ep_dispatch_experts" in whole(kind).ep_plan.values()


@pytest.mark.parametrize("version", ["5.17.0", "6.0.0"])
def test_other_versions_are_refused(version: str, tmp_path: Path) -> None:
    (tmp_path / "transformers.py").write_text(f'__version__ = "{version}"\n')
    paths = [str(tmp_path), str(Path(tern_ep.__file__).parents[1])]
    code = "import tern_ep.transformers"
    done = subprocess.run([sys.executable, "-c", code], env={**environment(), "PYTHONPATH": os.pathsep.join(paths)}, capture_output=True, text=True)
    assert done.returncode == 1 and f"transformers {version} is installed; tern_ep.transformers works with 5.23" in done.stderr


# ---- refused before anything is sent --------------------------------------------------------------------------------


@pytest.fixture
def layer(tmp_path: Path) -> Iterator[Any]:
    """The first layer of a model on one rank, as the model calls it."""
    import torch.distributed as dist
    from transformers_rank import spread

    import tern_ep.transformers

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    tern_ep.transformers.close()
    tern_ep.transformers.configure(max_tokens=8, decode_tokens=2)
    try:
        model = spread("qwen3")
        yield model.model.layers[0].mlp.experts
    finally:
        tern_ep.transformers.close()
        dist.destroy_process_group()


def test_wrong_tensors_are_refused(layer: Any) -> None:
    shared = tern_ep.transformers._layers[layer].shared
    x, ids, weights = torch.zeros(5, 96), torch.tensor([[0, 4, 11]] * 5), torch.ones(5, 3)
    with torch.no_grad():
        layer(x, ids, weights)
        rounds = [moe.stats().rounds for moe in shared._exchanges.values()]
        for wrong, text in [
            ((x[0], ids, weights), r"hidden_states is \[96\]"),
            ((x[:, :48], ids, weights), r"\[5, 48\] of torch.float32; it has to be \[n, 96\]"),
            ((x.to(torch.float64), ids, weights), "float64"),
            ((x, ids[:4], weights), r"top_k_index is \[4, 3\]"),
            ((x, ids[:, :2], weights[:, :2]), r"has to be \[5, 3\]"),
            ((x, ids.to(torch.int16), weights), "int16"),
            ((x, ids, weights[:, :1]), r"top_k_weights is \[5, 1\]"),
            ((x, ids, ids), "of torch.int64; it has to be"),
            ((x.to("meta"), ids, weights), "hidden_states is on meta; the expert mesh is of cpu"),
            ((x, ids + 12, weights), "12"),
        ]:
            with pytest.raises(tern_ep.InvalidError, match=text):
                layer(*wrong)
        assert rounds == [moe.stats().rounds for moe in shared._exchanges.values()]
        assert layer(x, ids, weights).shape == x.shape


def test_models_of_one_configuration(layer: Any) -> None:
    """Each has steps of its own, or the second would go by what ranks agreed on for the first."""
    from transformers_rank import spread_model, whole

    one = whole("qwen3")
    models = [spread_model(model) for model in (one, type(one)(one.config), type(one)(one.config))]
    found = [[tern_ep.transformers._layers[each.mlp.experts] for each in model.model.layers] for model in models]
    assert [[each.index for each in layers] for layers in found] == [[0, 1]] * 3
    assert len({id(each.model) for layers in found for each in layers}) == 3
    with torch.no_grad():
        for model in models:
            ids = torch.arange(2, 2 + 3 * (1 + models.index(model)))[None]
            assert model(ids).logits.shape[1] == ids.shape[1]


def test_wrong_settings_are_refused(layer: Any) -> None:
    with pytest.raises(tern_ep.InvalidError, match="decode_tokens is 9, max_tokens 8"):
        tern_ep.transformers.close()
        tern_ep.transformers.configure(decode_tokens=9)
    with torch.no_grad():
        layer(torch.zeros(1, 96), torch.tensor([[0, 4, 11]]), torch.ones(1, 3))
    with pytest.raises(tern_ep.StateError, match="agreed on settings"):
        tern_ep.transformers.configure(max_tokens=16)
    with pytest.raises(tern_ep.InvalidError, match="no layer of this model goes over Tern"):
        with tern_ep.transformers.together(torch.nn.Linear(2, 2)):
            pass


def test_wrong_meshes_are_refused(layer: Any) -> None:
    from transformers_rank import whole

    from tern_ep.transformers import TernEP, _layers

    made = _layers[layer]

    class Mesh:
        def __init__(self, device_type: str, ranks: List[int]):
            self.device_type, self.ranks, self.ndim = device_type, ranks, 1

        def get_group(self) -> Any:
            return torch.distributed.group.WORLD

        def size(self) -> int:
            return len(self.ranks)

    experts = whole("qwen3").model.layers[0].mlp.experts
    with pytest.raises(tern_ep.UnsupportedError, match="the expert mesh is of xpu; cpu and cuda are possible"):
        TernEP(experts, Mesh("xpu", [0]), Mesh("xpu", [0]))
    with pytest.raises(tern_ep.UnsupportedError, match=r"ranks \[1, 2\], the expert group \[0, 1, 2, 3\]"):
        made._check_replicas([0, 1, 2, 3], [1, 2])
    with pytest.raises(tern_ep.UnsupportedError, match=r"ranks \[0, 2\]"):
        made._check_replicas([0, 1, 2, 3], [0, 2])
    made._check_replicas([4, 5, 6, 7], [6, 7])
    experts.down_proj = torch.nn.Parameter(torch.zeros(12, 98, 24))
    with pytest.raises(tern_ep.UnsupportedError, match="a hidden size of 98 x torch.float32 is 392 bytes"):
        TernEP(experts, made.ep_mesh, made.tp_mesh)
