# SPDX-License-Identifier: Apache-2.0
"""One rank of test_transformers.py: tiny models with random weights, over Tern and whole in this process. With TERN_TEST_DEVICE=cuda they
are on GPUs, which ranks share if there are fewer."""

from __future__ import annotations

import copy
import os
import signal
import sys
import time
from typing import Any, List, Tuple

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, DeepseekV3Config, DistributedConfig, GptOssConfig, MixtralConfig, Qwen3MoeConfig
from transformers.distributed.expert_parallel import apply_expert_parallelism

import tern_ep
import tern_ep.transformers

DEVICE = os.environ.get("TERN_TEST_DEVICE", "cpu")
NEAR = 1e-5 if DEVICE == "cpu" else 1e-4
VOCABULARY, EXPERTS = 48, 12
SIZES = dict(vocab_size=VOCABULARY, hidden_size=96, num_hidden_layers=2, num_attention_heads=12, num_key_value_heads=12, head_dim=8, pad_token_id=0, eos_token_id=1)
CONFIGS = {
    "qwen3": lambda: Qwen3MoeConfig(intermediate_size=48, moe_intermediate_size=24, num_experts=EXPERTS, num_experts_per_tok=3, **SIZES),
    "gpt-oss": lambda: GptOssConfig(intermediate_size=24, num_local_experts=EXPERTS, num_experts_per_tok=3, sliding_window=8, layer_types=["sliding_attention", "full_attention"], **SIZES),
}
# With experts shared by all tokens, layers without experts, or another layout of the weights.
NARROW = {**SIZES, "num_hidden_layers": 3}
NARROW.pop("head_dim")
LATENT = dict(q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8)
OTHERS = {
    "deepseek": lambda: DeepseekV3Config(
        intermediate_size=48, moe_intermediate_size=24, n_routed_experts=EXPERTS, num_experts_per_tok=3, n_group=1, topk_group=1, first_k_dense_replace=1, n_shared_experts=1, **LATENT, **NARROW
    ),
    "mixtral": lambda: MixtralConfig(intermediate_size=24, num_local_experts=EXPERTS, num_experts_per_tok=3, **NARROW),
}


def whole(kind: str) -> Any:
    """The same on every rank."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config({**CONFIGS, **OTHERS}[kind](), dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.1)  # biases included
    return model.to(DEVICE)


def spread(kind: str, implementation: str = "tern") -> Any:
    """Ranks with batches of their own: the experts are spread, and all else is on every rank."""
    return spread_model(whole(kind), implementation)


def spread_model(model: Any, implementation: str = "tern") -> Any:
    mesh = dist.device_mesh.init_device_mesh(DEVICE, (dist.get_world_size(), 1), mesh_dim_names=("ep", "tp"))
    return apply_expert_parallelism(model, mesh["ep"], mesh["tp"], model._expand_parallel_plan(model.ep_plan), implementation)


def batch(seed: int, nr: int, length: int) -> Tuple[Any, Any]:
    """Padded on the left, each row by another number."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, VOCABULARY, (nr, length), generator=random)
    mask = torch.ones_like(ids)
    for row in range(nr):
        mask[row, : row % 3] = 0
    return (ids * mask).to(DEVICE), mask.to(DEVICE)


def same(one: Any, other: Any) -> None:
    worst = float((one - other).abs().max()) if one.numel() else 0.0
    assert one.shape == other.shape and worst < NEAR, f"{list(one.shape)} differs by {worst}"


def own_batches(kind: str) -> None:
    """Batches and lengths differ; so do numbers of steps, and one rank has nothing to do at all. Prefill takes several rounds."""
    rank, alone, model = dist.get_rank(), whole(kind), spread(kind)
    ids, mask = batch(rank, 1 + 2 * rank, 9 + 4 * rank)
    with torch.no_grad():
        same(model(ids, attention_mask=mask).logits, alone(ids, attention_mask=mask).logits)
        with tern_ep.transformers.together(model):
            if rank != 1:
                for again in range(1 + rank % 2):
                    settings = dict(do_sample=False, max_new_tokens=4 + 3 * rank, min_new_tokens=3)
                    made = model.generate(ids, attention_mask=mask, **settings)
                    assert torch.equal(made, alone.generate(ids, attention_mask=mask, **settings)), f"rank {rank}"
        same(model(ids[:1], attention_mask=mask[:1]).logits, alone(ids[:1], attention_mask=mask[:1]).logits)
        # Without together(), as transformers keeps ranks in step.
        settings = dict(do_sample=False, max_new_tokens=3 + rank)
        made = model.generate(ids, attention_mask=mask, synced_gpus=True, **settings)
        assert torch.equal(made, alone.generate(ids, attention_mask=mask, **settings))


def shared_batch(kind: str) -> None:
    """One batch for all: attention is split, too, as from_pretrained does it."""
    alone, nr_ranks = whole(kind), dist.get_world_size()
    folder = os.path.join(sys.argv[2], kind)
    if dist.get_rank() == 0:
        alone.save_pretrained(folder)
    dist.barrier()
    config = DistributedConfig(tp_size=nr_ranks, ep_size=nr_ranks, ep_implementation="tern")
    model = AutoModelForCausalLM.from_pretrained(folder, distributed_config=config, dtype=torch.float32).eval()
    layers = [tern_ep.transformers._layers[m] for m in model.modules() if m in tern_ep.transformers._layers]
    assert len(layers) == 2 and all(layer.shares_batch for layer in layers)
    ids, mask = batch(5, 3, 11)
    with torch.no_grad():
        same(model(ids, attention_mask=mask).logits, alone(ids, attention_mask=mask).logits)
        settings = dict(attention_mask=mask, do_sample=False, max_new_tokens=6)
        with tern_ep.transformers.together(model):
            assert torch.equal(model.generate(ids, **settings), alone.generate(ids, **settings))


def sharded(kind: str) -> None:
    """Batches of their own under FSDP, which makes ranks keep step."""
    alone, rank, nr_ranks = whole(kind), dist.get_rank(), dist.get_world_size()
    folder = os.path.join(sys.argv[2], kind)
    if rank == 0:
        alone.save_pretrained(folder)
    dist.barrier()
    config = DistributedConfig(fsdp_size=nr_ranks, ep_size=nr_ranks, ep_implementation="tern")
    model = AutoModelForCausalLM.from_pretrained(folder, distributed_config=config, dtype=torch.float32).eval()
    ids, mask = batch(rank, 2 + rank, 9 + rank)
    with torch.no_grad():
        same(model(ids, attention_mask=mask).logits, alone(ids, attention_mask=mask).logits)
        settings = dict(attention_mask=mask, do_sample=False, max_new_tokens=3 + rank)
        assert torch.equal(model.generate(ids, **settings), alone.generate(ids, **settings))
    # One text on all ranks: the mean of the gradients is that of one process.
    text = batch(9, 2, 8)[0]
    for one in (model, alone):
        loss_of(one.train(), text).backward()
    for (name, parameter), expected in zip(model.named_parameters(), alone.parameters()):
        same(parameter.grad.full_tensor(), expected.grad)


def another_type(kind: str) -> None:
    """The model's type changes after it was spread. In bfloat16 a token may take another expert than alone, so most logits are compared."""
    alone, model = whole(kind).to(torch.bfloat16), spread(kind).to(torch.bfloat16)
    ids, mask = batch(dist.get_rank(), 4, 12)
    with torch.no_grad():
        apart = (model(ids, attention_mask=mask).logits - alone(ids, attention_mask=mask).logits)[mask.bool()].abs().float()
    assert float(apart.median()) < 0.02, float(apart.median())


def logits(kind: str) -> None:
    own_batches(kind)
    another_type(kind)
    if dist.get_world_size() > 1 and DEVICE == "cpu":
        shared_batch(kind)


def loss_of(model: Any, ids: Any) -> Any:
    return model(ids, labels=ids).loss


def training(kind: str) -> None:
    """Steps on batches of their own beside one process with all of them, which every rank is, too. Each step accumulates two micro-batches;
    the second half of the steps recomputes activations."""
    rank, nr_ranks, nr_steps = dist.get_rank(), dist.get_world_size(), 200 if kind == "qwen3" else 20
    models = [whole(kind).train(), spread(kind).train()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, foreach=False) for model in models]
    random = torch.Generator().manual_seed(3)
    for step in range(nr_steps):
        if step == nr_steps // 2:
            models[1].gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
        # A text that can be learned: each token follows from the one before.
        starts = torch.randint(2, VOCABULARY, (nr_ranks, 2, 1), generator=random)
        ids = ((starts + 5 * torch.arange(10)) % (VOCABULARY - 2) + 2).to(DEVICE)
        losses = torch.zeros(2)
        for part in range(2):
            loss = loss_of(models[0], ids[:, part]) / 2
            loss.backward()
            losses[0] += float(loss.detach())
            loss = loss_of(models[1], ids[rank, part : part + 1]) / 2
            loss.backward()
            losses[1] += float(loss.detach())
        tern_ep.transformers.average_gradients(models[1])
        if step == 0:
            compare_gradients(*models)
        dist.all_reduce(losses)
        losses /= nr_ranks
        assert abs(float(losses[0] - losses[1])) < 1e-3, f"step {step}: {losses.tolist()}"
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert nr_steps < 200 or float(losses[1]) < 1.0, f"nothing was learned: {losses.tolist()}"


def compare_gradients(alone: Any, model: Any) -> None:
    mine = dict(model.named_parameters())
    for name, parameter in alone.named_parameters():
        grad, expected = mine[name].grad, parameter.grad
        if grad is not None and hasattr(grad, "to_local"):
            grad = grad.to_local()
            expected = expected.chunk(dist.get_world_size())[dist.get_rank()]
        same(grad, expected)


def late_s() -> float:
    """How long this process's threads could have run and did not."""
    late = 0
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/schedstat") as file:
                late += int(file.read().split()[1])
        except OSError:  # it has ended, or the kernel does not say
            pass
    return late / 1e9


def watched(model: Any, folder: str) -> List[float]:
    """Rank 1 dies in its third pass through the second layer, forward or backward, and leaves a note of when. Others note how late they
    were with each pass."""
    late: List[float] = []

    def passing(*_: Any) -> None:
        late.append(late_s())
        if dist.get_rank() == 1 and len(late) == 3:
            with open(os.path.join(folder, "killed.new"), "w") as file:
                file.write(str(time.monotonic()))
            os.rename(file.name, os.path.join(folder, "killed"))
            os.kill(os.getpid(), signal.SIGKILL)

    layer = model.model.layers[1].mlp
    if model.training:
        layer.register_full_backward_hook(passing)
    else:
        layer.register_forward_pre_hook(passing)
    return late


def killed(kind: str, train: bool) -> None:
    """Rank 1 is killed. All others name it, within a second that the machine let them run."""
    rank, folder = dist.get_rank(), sys.argv[2]
    model = spread(kind).train(train)
    late = watched(model, folder)
    ids, mask = batch(rank, 1 + rank, 9)
    try:
        with tern_ep.transformers.together(model):
            if train:
                for _ in range(10):
                    loss_of(model, ids).backward()
            else:
                model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=20, min_new_tokens=20)
    except tern_ep.PeerDeadError as error:
        with open(os.path.join(folder, "killed")) as file:
            passed = time.monotonic() - float(file.read()) - (late_s() - late[-1])
        assert "rank 1" in str(error) and error.report.peer == 1, str(error)
        assert passed < 1, f"after {passed} s: {error}"
        print(f"rank {rank}: {passed:.3f} s: {error}", flush=True)
        os._exit(0)  # torch.distributed would wait for the dead one
    raise AssertionError("nobody was missed")


def by_layer(kind: str) -> None:
    """The experts by tern_ep.Layer, where it can."""
    tern_ep.transformers.configure(experts="tern")
    own_batches(kind)
    layers = [layer for shared in tern_ep.transformers._shared.values() for _, layer in shared._layers.values()]
    assert (len(layers) > 1 and all(layers)) == (kind == "qwen3"), (kind, layers)


def killed_in_generate(kind: str) -> None:
    killed(kind, False)


def killed_in_backward(kind: str) -> None:
    killed(kind, True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    backend = "gloo"
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["RANK"]) % torch.cuda.device_count())
        if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]):
            backend = "cpu:gloo,cuda:nccl"  # NCCL wants a GPU for each rank
    dist.init_process_group(backend)
    tern_ep.transformers.configure(max_tokens=24, decode_tokens=4, wait_ms=60000)
    for kind in OTHERS if sys.argv[1] == "own_batches" else CONFIGS:
        globals()[sys.argv[1]](kind)
        tern_ep.transformers.close()
    dist.destroy_process_group()
    # A thread of gloo lets go of the last collective's tensors when it likes; where Python ends just then, torch 2.11 aborts.
    sys.stdout.flush()
    os._exit(0)
