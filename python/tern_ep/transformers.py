# SPDX-License-Identifier: Apache-2.0
"""Expert parallelism of Hugging Face transformers over Tern, registered as "tern" when this module is imported.

    import tern_ep.transformers
    from transformers import AutoModelForCausalLM, DistributedConfig

    model = AutoModelForCausalLM.from_pretrained(
        checkpoint, distributed_config=DistributedConfig(tp_size=2, ep_size=2, ep_implementation="tern")
    )

The guide is docs/transformers.md.
"""

from __future__ import annotations

import atexit
import contextlib
import weakref
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import torch
import transformers
from torch import Tensor

from .arrays import Dtype
from .config import Config, Device, Mode
from .errors import InvalidError, StateError, UnsupportedError
from .exchange import Exchange
from .group import Group
from .layer import Layer
from .torch import Differentiable, Ops

VERSIONS = ("5.23", "5.24")
"""Of transformers, with which this module was tested."""

if ".".join(transformers.__version__.split(".")[:2]) not in VERSIONS:
    raise UnsupportedError(f"transformers {transformers.__version__} is installed; tern_ep.transformers works with {', '.join(VERSIONS)}")

from transformers.distributed.expert_parallel import EPImplementation, EPImplementationInterface  # noqa: E402

_TYPES = {torch.float32: Dtype.FP32, torch.float16: Dtype.FP16, torch.bfloat16: Dtype.BF16}
_TOPK = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")


@dataclass(frozen=True)
class Settings:
    """The same on all ranks."""

    max_tokens: int = 4096
    """The most tokens of one round. A rank that has more takes several."""
    decode_tokens: int = 64
    """Steps in which no rank has more than so many go through a smaller exchange in low-latency mode."""
    lockstep: bool = False
    """Ranks with batches of their own promise that each step is one for decode_tokens on all of them, or on none, and that none has
    more than max_tokens. Then they do not ask each other, which on GPUs makes the host wait once a step."""
    experts: str = "auto"
    """auto: on GPUs by Tern's kernels where these can (Layer: gated by SiLU, no biases, BF16), else by torch. torch: always so. tern: by
    Layer on CPUs, too, where it is slow and for tests."""
    wait_ms: int = 300000
    """The longest wait for another rank. A dead one is noticed at once."""
    group: Mapping[str, Any] = field(default_factory=dict)
    """More arguments of Group, such as transport or silence_ms."""


_EXPERTS = ("auto", "torch", "tern")
_settings = Settings()


def configure(**changes: Any) -> None:
    """Changes Settings, before the first model is distributed or after close()."""
    global _settings
    if _shared:
        raise StateError("ranks have agreed on settings already: call close() on all of them first")
    changed = replace(_settings, **changes)
    if changed.experts not in _EXPERTS:
        raise InvalidError(f'experts is "{changed.experts}"; {", ".join(_EXPERTS)} are possible')
    if not 0 < changed.decode_tokens <= changed.max_tokens:
        raise InvalidError(f"decode_tokens is {changed.decode_tokens}, max_tokens {changed.max_tokens}; 0 < decode_tokens <= max_tokens is possible")
    _settings = changed


class _Vote:
    """How many tokens the rank with the most has, by an exchange of one row from each rank to each. Nothing of torch.distributed, as
    its waits do not name who is missing."""

    def __init__(self, group: Group, device: torch.device, wait_ms: int):
        nr_ranks, fp32 = group.nr_ranks, Dtype.FP32
        topk = min(nr_ranks, 32)
        nr_tokens = -(-nr_ranks // topk)
        on = Device.CUDA if device.type == "cuda" else Device.CPU
        config = Config(
            hidden=4, nr_experts=nr_ranks, topk=topk, max_tokens=nr_tokens, x_dtype=fp32, dispatch_dtype=fp32, combine_dtype=fp32, wait_ms=wait_ms, device=on
        )
        self.moe = Exchange(group, config, arrays="torch")
        ids = torch.arange(nr_tokens * topk, dtype=torch.int32)
        self.ids = ids.masked_fill(ids >= nr_ranks, -1).view(nr_tokens, topk).to(device)
        self.row = torch.zeros(nr_tokens, 4, dtype=torch.float32, device=device)

    def most(self, mine: int) -> int:
        self.row.view(torch.int32).fill_(mine)
        received = self.moe.dispatch(self.row, self.ids)
        told = int(received.x[: self.moe.nr_ranks].view(torch.int32).max())
        self.moe.release()
        return told


class _Shared:
    """What all layers over one process group share: Tern's group, and an exchange for each shape. Each is made with its first use, by
    all ranks at once."""

    def __init__(self, process_group: Any, device_type: str, replica_ranks: int):
        self.settings = _settings
        self.process_group, self.replica_ranks = process_group, replica_ranks
        self.device_type = device_type
        self._group: Optional[Group] = None
        self._vote: Optional[_Vote] = None
        self._exchanges: Dict[Tuple[Any, ...], Exchange] = {}
        self._ops: Dict[int, Ops] = {}
        self._trained: Dict[int, Differentiable] = {}
        self._layers: Dict[Tuple[int, int], Tuple[Tuple[int, int], Optional[Layer]]] = {}

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device()) if self.device_type == "cuda" else torch.device("cpu")

    def group(self) -> Group:
        if self._group is None:
            self._group = Group.from_torch(self.process_group, **self.settings.group)
        return self._group

    def most(self, mine: int) -> int:
        if self._vote is None:
            self._vote = _Vote(self.group(), self.device, self.settings.wait_ms)
        return self._vote.most(mine)

    def exchange(self, hidden: int, nr_experts: int, topk: int, dtype: torch.dtype, small: bool, trained: bool) -> Exchange:
        key = (hidden, nr_experts, topk, dtype, small, trained)
        if key not in self._exchanges:
            row = _TYPES[dtype]
            config = Config(
                hidden=hidden,
                nr_experts=nr_experts,
                topk=topk,
                max_tokens=self.settings.decode_tokens if small else self.settings.max_tokens,
                mode=Mode.LOW_LATENCY if small else Mode.HIGH_THROUGHPUT,
                x_dtype=row,
                dispatch_dtype=row,
                combine_dtype=row,
                replica_ranks=self.replica_ranks,
                combine_floats=trained,
                wait_ms=self.settings.wait_ms,
                device=Device.CUDA if self.device_type == "cuda" else Device.CPU,
            )
            self._exchanges[key] = Exchange(self.group(), config, arrays="torch")
        return self._exchanges[key]

    def ops(self, moe: Exchange) -> Ops:
        if id(moe) not in self._ops:
            self._ops[id(moe)] = Ops(moe)
        return self._ops[id(moe)]

    def trained(self, moe: Exchange) -> Differentiable:
        if id(moe) not in self._trained:
            self._trained[id(moe)] = Differentiable(moe)
        return self._trained[id(moe)]

    def layer(self, owner: "TernEP", moe: Exchange, experts: Any) -> Optional[Layer]:
        """The experts by Tern's own kernels; None where they cannot, or a graph is captured, in which none can be made."""
        gate_up, down = experts.gate_up_proj.detach(), experts.down_proj.detach()
        key, at = (id(owner), id(moe)), (gate_up.data_ptr(), down.data_ptr())
        known = self._layers.get(key)
        if known is None or known[0] != at:
            if _capturing(self.device_type):
                return None
            known = self._layers[key] = at, _made(moe, gate_up, down)
        return known[1]

    def close(self) -> None:
        for _, layer in self._layers.values():
            if layer is not None:
                layer.close()
        self._layers.clear()
        for moe in [*self._exchanges.values(), *([self._vote.moe] if self._vote else [])]:
            moe.close()
        if self._group is not None:
            self._group.close()


def _made(moe: Exchange, gate_up: Tensor, down: Tensor) -> Optional[Layer]:
    try:
        return Layer(moe, gate_up, down)
    except UnsupportedError:
        return None


_shared: Dict[Tuple[str, int], _Shared] = {}


def close() -> None:
    """Leaves all groups and exchanges, so that peers which still wait learn of it. The next forward makes new ones."""
    for shared in list(_shared.values()):
        shared.close()
    _shared.clear()


atexit.register(close)


class _Model:
    """The layers of one model in the order of their forward passes, and how large the step is that is under way."""

    def __init__(self) -> None:
        self.nr_layers = 0
        self.used = False
        self.last = -1
        self.most = 0
        self.serving = False

    def step(self, index: int, shared: _Shared, nr_tokens: int, agreed: bool) -> int:
        """The tokens of the rank that has most of them in this step. A step begins with a layer that does not come behind the last."""
        begins, self.last, self.used = index <= self.last or self.last < 0, index, True
        if begins and not self.serving:
            self.most = nr_tokens if agreed else shared.most(1 + nr_tokens) - 1
        return self.most


_models: Dict[int, Tuple[Any, _Model]] = {}  # by configuration, which layers of a model share
_layers: "weakref.WeakKeyDictionary[Any, TernEP]" = weakref.WeakKeyDictionary()  # by module


def _model_of(config: Any) -> _Model:
    """The model whose layers are being distributed. One that has run, or has all its layers, was another of the same configuration."""
    known = _models.get(id(config))
    most = getattr(config, "num_hidden_layers", None)
    if known is None or known[0]() is not config or known[1].used or known[1].nr_layers == most:
        known = _models[id(config)] = (weakref.ref(config), _Model())
    return known[1]


def _is_plain(experts: Any) -> bool:
    """silu(gate) * up between two products, and nothing else, as Layer has it."""
    gate = getattr(type(experts), "_apply_gate", None)
    return (
        experts.has_gate
        and not experts.has_bias
        and not experts.is_transposed
        and not getattr(experts, "has_post_expert_norm", False)
        and getattr(gate, "__name__", "") == "_default_apply_gate"
        and type(getattr(experts, "act_fn", None)).__name__ in ("SiLU", "SiLUActivation")
    )


class TernEP(EPImplementation):  # type: ignore[misc]
    """The experts of one layer, reached over Tern. Made by transformers, for each module that has an ep_dispatch_experts rule."""

    def __init__(self, experts: Any, ep_mesh: Any, tp_mesh: Any):
        super().__init__(experts, ep_mesh, tp_mesh)
        process_group = ep_mesh.get_group()
        if ep_mesh.device_type not in ("cpu", "cuda"):
            raise UnsupportedError(f"the expert mesh is of {ep_mesh.device_type}; cpu and cuda are possible")
        self._check_replicas(torch.distributed.get_process_group_ranks(process_group), torch.distributed.get_process_group_ranks(tp_mesh.get_group()))
        weights = getattr(experts, "down_proj", None)
        # Of quantised weights, and of modules that are built otherwise, the module's own forward knows more.
        self.own = hasattr(experts, "has_gate") and getattr(weights, "dtype", None) in _TYPES
        self.plain = self.own and _is_plain(experts)
        self.nr_experts: int = self.num_local_experts * ep_mesh.size()
        self.experts = weakref.ref(experts)
        self.process_group = process_group
        self.model = _model_of(getattr(experts, "config", experts))
        self.index = self.model.nr_layers
        self.model.nr_layers += 1
        self.hidden = self.topk = 0
        self.seen: Optional[torch.dtype] = None
        self._read_sizes(experts, weights)
        _layers[experts] = self

    def _check_replicas(self, ranks: List[int], replicas: List[int]) -> None:
        begin = ranks.index(replicas[0]) if replicas[0] in ranks else -1
        if begin < 0 or begin % len(replicas) or ranks[begin : begin + len(replicas)] != replicas:
            raise UnsupportedError(
                f"the tensor-parallel group has ranks {replicas}, the expert group {ranks}: a tensor-parallel group has to lie in one piece in the expert group"
            )

    def _read_sizes(self, experts: Any, weights: Any) -> None:
        """Hidden size and top-k where the module tells them: a rank that only serves others never sees a token."""
        config = getattr(experts, "config", None)
        self.topk = next((int(getattr(config, name)) for name in _TOPK if getattr(config, name, None)), 0)
        if self.own:
            self.hidden = int(weights.shape[2 if experts.is_transposed else 1])
            row_bytes = self.hidden * weights.element_size()
            if row_bytes % 16:
                raise UnsupportedError(f"a hidden size of {self.hidden} x {self.dtype} is {row_bytes} bytes; multiples of 16 are possible")

    @property
    def shared(self) -> _Shared:
        """Made anew after close()."""
        key = self.process_group.group_name, self.tp_mesh.size()
        if key not in _shared:
            _shared[key] = _Shared(self.process_group, self.ep_mesh.device_type, self.tp_mesh.size())
        return _shared[key]

    @property
    def dtype(self) -> Optional[torch.dtype]:
        """Of rows: the weights', which a model.to() may change; else that of the last tokens."""
        experts = self.experts()
        return experts.down_proj.dtype if self.own and experts is not None else self.seen

    # ---- the layer ----

    def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        self._check(hidden_states, top_k_index, top_k_weights)
        x, ids, weights = hidden_states.to(self.dtype).contiguous(), top_k_index.contiguous(), top_k_weights.to(torch.float32).contiguous()
        trained = torch.is_grad_enabled() and self._takes_gradients(x, weights)
        moe, nr_rounds = self._choose(x.shape[0], trained)
        one = self._trained_round if trained else self._round
        if nr_rounds == 1:
            return one(moe, x, ids, weights)
        most = moe.config.max_tokens
        parts = [slice(i * most, (i + 1) * most) for i in range(nr_rounds)]
        return torch.cat([one(moe, x[part], ids[part], weights[part]) for part in parts])

    def _takes_gradients(self, x: Tensor, weights: Tensor) -> bool:
        """The same on all ranks: it does not depend on what a rank holds."""
        experts = self.experts()
        assert experts is not None
        return x.requires_grad or weights.requires_grad or any(p.requires_grad for p in experts.parameters())

    def _check(self, x: Tensor, ids: Tensor, weights: Tensor) -> None:
        """Before anything is sent. What was seen once has to stay."""
        if x.dim() != 2 or x.dtype not in _TYPES or (self.hidden and x.shape[1] != self.hidden):
            raise InvalidError(f"hidden_states is {list(x.shape)} of {x.dtype}; it has to be [n, {self.hidden or 'H'}] of float32, float16 or bfloat16")
        if ids.dim() != 2 or ids.shape[0] != x.shape[0] or ids.dtype not in (torch.int64, torch.int32) or (self.topk and ids.shape[1] != self.topk):
            raise InvalidError(f"top_k_index is {list(ids.shape)} of {ids.dtype}; it has to be [{x.shape[0]}, {self.topk or 'K'}] of int64 or int32")
        if weights.shape != ids.shape or not weights.is_floating_point():
            raise InvalidError(f"top_k_weights is {list(weights.shape)} of {weights.dtype}; it has to be {list(ids.shape)} of a floating-point type")
        for name, tensor in (("hidden_states", x), ("top_k_index", ids), ("top_k_weights", weights)):
            if tensor.device.type != self.ep_mesh.device_type:
                raise InvalidError(f"{name} is on {tensor.device}; the expert mesh is of {self.ep_mesh.device_type}")
        self.hidden, self.topk = int(x.shape[1]), int(ids.shape[1])
        self.seen = x.dtype

    def _choose(self, nr_tokens: int, trained: bool) -> Tuple[Exchange, int]:
        """The exchange of this step, and how many rounds it takes: the same on all ranks."""
        shared, settings = self.shared, self.shared.settings
        compiling = torch.compiler.is_compiling()
        agreed = self.shares_batch or settings.lockstep or compiling or _capturing(self.ep_mesh.device_type)
        most = nr_tokens if compiling else self.model.step(self.index, shared, nr_tokens, agreed)
        return self._exchange_for(nr_tokens, most, agreed and not self.shares_batch, trained)

    def _exchange_for(self, nr_tokens: int, most: int, one_round: bool, trained: bool) -> Tuple[Exchange, int]:
        settings = self.shared.settings
        dtype = self.dtype
        assert dtype is not None
        if nr_tokens > most or (one_round and nr_tokens > settings.max_tokens):
            raise InvalidError(f"{nr_tokens} tokens; {most if nr_tokens > most else settings.max_tokens} were agreed on")
        small = most <= settings.decode_tokens and not trained
        moe = self.shared.exchange(self.hidden, self.nr_experts, self.topk, dtype, small, trained)
        return moe, max(1, -(-most // moe.config.max_tokens))

    def _round(self, moe: Exchange, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        if moe.on_device and torch.compiler.is_compiling():
            ops = self.shared.ops(moe)
            rows = ops.dispatch(x, ids, weights)
            return ops.combine(self._run(rows.x, rows.counts), x.shape[0])
        with torch.no_grad():
            layer = self._layer(moe, x)
            if layer is not None:
                return layer(x.detach(), ids, weights.detach())  # type: ignore[no-any-return]
            received = moe.dispatch(x.detach(), ids, weights.detach())
            result: Tensor = moe.combine(self._run(received.x, received.counts))
        return result

    def _layer(self, moe: Exchange, x: Tensor) -> Optional[Layer]:
        wanted = self.shared.settings.experts
        if not self.plain or wanted == "torch" or (wanted == "auto" and not (moe.on_device and x.dtype == torch.bfloat16)):
            return None
        return self.shared.layer(self, moe, self.experts())

    def _trained_round(self, moe: Exchange, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        ops = self.shared.trained(moe)
        rows, row_weights, counts, plan = ops.dispatch(x, ids, weights)
        y = self._run(rows, counts)
        return ops.combine((y.to(torch.float32) * row_weights[:, None]).to(y.dtype), plan, x.shape[0])

    def serve(self) -> None:
        """A step of the others, without tokens: by the module, as whoever has hooks there expects it."""
        experts, device = self.experts(), self.shared.device
        dtype = self.dtype
        if not self.hidden or not self.topk or dtype is None:
            raise StateError("this rank has seen no tokens yet, and the model does not tell its hidden size and top-k")
        assert experts is not None
        ids = torch.empty(0, self.topk, dtype=torch.int64, device=device)
        experts(torch.empty(0, self.hidden, dtype=dtype, device=device), ids, ids.to(torch.float32))

    # ---- the experts ----

    def _run(self, rows: Tensor, counts: Tensor) -> Tensor:
        """This rank's experts over the rows that came, which lie expert by expert."""
        experts = self.experts()
        assert experts is not None
        if self.own:
            return _Rows(rows, counts).through(experts).to(rows.dtype).contiguous()
        if rows.shape[0] == 0:
            return rows
        ids = _Rows(rows, counts).experts[:, None]
        result: Tensor = self.experts_forward(rows, ids, torch.ones_like(ids, dtype=rows.dtype))
        return result.to(rows.dtype).contiguous()


class _Rows:
    """Rows by expert, and products with the experts' matrices. On a GPU there is room for more rows than came: what is behind the last
    is computed with or not, and nobody reads it. The host does not learn the counts."""

    def __init__(self, rows: Tensor, counts: Tensor):
        self.rows, self.counts = rows, counts
        self.grouped = rows.is_cuda and rows.dtype == torch.bfloat16 and hasattr(torch.nn.functional, "grouped_mm")
        self.ends = torch.cumsum(counts, 0, dtype=torch.int32)

    @property
    def experts(self) -> Tensor:
        """Of each row; the number of experts for rows behind the last."""
        return torch.bucketize(torch.arange(self.rows.shape[0], device=self.rows.device), self.ends, right=True)

    def through(self, module: Any) -> Tensor:
        first = "gate_up_proj" if module.has_gate else "up_proj"
        y = self._linear(self.rows, module, first)
        y = module._apply_gate(y) if module.has_gate else module.act_fn(y)
        y = self._linear(y, module, "down_proj")
        return module.post_expert_norm(y) if getattr(module, "has_post_expert_norm", False) else y

    def _linear(self, x: Tensor, module: Any, name: str) -> Tensor:
        matrices = getattr(module, name)
        if not module.is_transposed:
            matrices = matrices.transpose(1, 2)
        bias = getattr(module, f"{name}_bias") if module.has_bias else None
        if self.grouped:
            y = torch.nn.functional.grouped_mm(x, matrices, offs=self.ends)
            # Rows behind the last take a row of their own, or what they hold would go into a bias's gradient.
            return y if bias is None else y + torch.cat([bias, torch.zeros_like(bias[:1])])[self.experts]
        return self._one_by_one(x, matrices, bias)

    def _one_by_one(self, x: Tensor, matrices: Tensor, bias: Optional[Tensor]) -> Tensor:
        counts = self.counts.tolist()
        parts = x.split([*counts, x.shape[0] - sum(counts)])
        products = []
        # Without any row one expert still computes on none, which keeps the graph of gradients in one piece.
        hit = [i for i, count in enumerate(counts) if count] or [0]
        matrix = matrices.unbind(0)
        biases = None if bias is None else bias.unbind(0)
        for i in hit:
            products.append(parts[i] @ matrix[i] if biases is None else torch.addmm(biases[i], parts[i], matrix[i]))
        if parts[-1].shape[0]:
            products.append(parts[-1].new_zeros(parts[-1].shape[0], matrices.shape[2]))
        return torch.cat(products)


def average_gradients(model: Any) -> None:
    """Data-parallel training without FSDP, each rank with a batch of its own, after the last backward pass of a step: gradients become
    those of the mean of all ranks' losses. Experts have seen all ranks' tokens already."""
    layers = [_layers[module] for module in model.modules() if module in _layers]
    if not layers:
        raise InvalidError("no layer of this model goes over Tern")
    mesh = layers[0].ep_mesh
    experts = {id(p) for module in model.modules() if module in _layers for p in module.parameters()}
    for parameter in model.parameters():
        if parameter.grad is None and parameter.requires_grad and id(parameter) not in experts:
            parameter.grad = torch.zeros_like(parameter)  # others may have one
        if parameter.grad is None:
            continue
        parameter.grad.div_(mesh.size())
        if id(parameter) not in experts:
            torch.distributed.all_reduce(parameter.grad, group=mesh.get_group())


def _capturing(device_type: str) -> bool:
    return device_type == "cuda" and torch.cuda.is_current_stream_capturing()


@contextlib.contextmanager
def together(model: Any) -> Iterator[None]:
    """For ranks with batches of their own that make other numbers of steps, or none: all enter, do what they have to do, and serve the
    others' tokens with their experts until all are done. Leaves all groups if what is inside fails, so that nobody waits."""
    layers = [_layers[module] for module in model.modules() if module in _layers]
    if not layers:
        raise InvalidError("no layer of this model goes over Tern")
    if any(layer.model is not layers[0].model for layer in layers):
        raise UnsupportedError("layers of this model have configurations of their own: in which order they are used is not known")
    if layers[0].shared.settings.lockstep and not layers[0].shares_batch:
        raise StateError("ranks in lockstep make the same steps: configure(lockstep=False)")
    try:
        yield
    except BaseException:
        close()
        raise
    if not layers[0].shares_batch:
        _serve(layers)


def _serve(layers: List[TernEP]) -> None:
    model, shared = layers[0].model, layers[0].shared
    model.serving = True
    try:
        with torch.no_grad():
            while (most := shared.most(0) - 1) >= 0:
                model.most = most
                for layer in layers:
                    layer.serve()
    finally:
        model.serving, model.last = False, -1


EPImplementationInterface.register("tern", TernEP)
