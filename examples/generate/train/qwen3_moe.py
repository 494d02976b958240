# SPDX-License-Identifier: Apache-2.0
"""The Qwen3-MoE architecture, written for training a small model quickly.

Every expert runs on every token and the gate weights (zero for the experts
that the router did not choose) mask the result: at this size two large matrix
products beat a gather, thirty-two small products and a scatter. The function
computed is the sparse one, and `export` writes the tensors under the names of
the Hugging Face checkpoints.
"""
import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn


@dataclass
class Config:
    vocab_size: int = 256
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 32
    num_experts: int = 32
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 64
    max_position_embeddings: int = 1024
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    dropout: float = 0.0  # of each block's output, in training only

    def to_hf(self) -> dict:
        """config.json in the form that Qwen3-MoE checkpoints are published with."""
        sizes = {k: v for k, v in self.__dict__.items() if k != "dropout"}
        return {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            **sizes,
            "intermediate_size": self.num_experts_per_tok * self.moe_intermediate_size,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": None,
            "decoder_sparse_step": 1,
            "eos_token_id": None,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
            "output_router_logits": False,
            "rope_scaling": None,
            "router_aux_loss_coef": 0.01,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "use_sliding_window": False,
        }


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        x32 = x.float()
        x32 = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight * x32).to(x.dtype)


def rope_table(cfg: Config, length: int, device):
    exponent = torch.arange(0, cfg.head_dim, 2, device=device).float() / cfg.head_dim
    angle = torch.outer(torch.arange(length, device=device).float(), cfg.rope_theta ** -exponent)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x.float() * cos + turned.float() * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg = cfg
        q_size = cfg.num_attention_heads * cfg.head_dim
        kv_size = cfg.num_key_value_heads * cfg.head_dim
        self.q_proj = nn.Linear(cfg.hidden_size, q_size, bias=False)
        self.k_proj = nn.Linear(cfg.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(cfg.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, cfg.hidden_size, bias=False)
        self.q_norm = RMSNorm(cfg.head_dim, cfg.rms_norm_eps)
        self.k_norm = RMSNorm(cfg.head_dim, cfg.rms_norm_eps)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        heads = lambda t: t.view(batch, length, -1, self.cfg.head_dim)
        q = rotate(self.q_norm(heads(self.q_proj(x))).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(heads(self.k_proj(x))).transpose(1, 2), cos, sin)
        v = heads(self.v_proj(x)).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class SparseMoe(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg = cfg
        width = cfg.num_experts * cfg.moe_intermediate_size
        self.gate = nn.Linear(cfg.hidden_size, cfg.num_experts, bias=False)
        self.gate_proj = nn.Linear(cfg.hidden_size, width, bias=False)
        self.up_proj = nn.Linear(cfg.hidden_size, width, bias=False)
        self.down_proj = nn.Linear(width, cfg.hidden_size, bias=False)

    def route(self, x):
        """Gate weights over all experts (zero where not chosen), and the balance loss."""
        cfg = self.cfg
        with torch.autocast(x.device.type, enabled=False):
            probs = F.linear(x.float(), self.gate.weight.float()).softmax(dim=-1)
            top, ids = probs.topk(cfg.num_experts_per_tok, dim=-1)
            top = top / top.sum(dim=-1, keepdim=True)
            weights = torch.zeros_like(probs).scatter(-1, ids, top)
            share = (weights > 0).float().mean(0) / cfg.num_experts_per_tok
            balance = cfg.num_experts * (share * probs.mean(0)).sum()
        return weights, balance, share

    def forward(self, x):
        flat = x.reshape(-1, self.cfg.hidden_size)
        weights, balance, share = self.route(flat)
        hidden = F.silu(self.gate_proj(flat)) * self.up_proj(flat)
        hidden = hidden.view(-1, self.cfg.num_experts, self.cfg.moe_intermediate_size)
        hidden = (hidden * weights.unsqueeze(-1).to(hidden.dtype)).flatten(1)
        return self.down_proj(hidden).view_as(x), balance, share


class Layer(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.self_attn = Attention(cfg)
        self.mlp = SparseMoe(cfg)
        self.input_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, x, cos, sin):
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), cos, sin))
        out, balance, share = self.mlp(self.post_attention_layernorm(x))
        return x + self.dropout(out), balance, share


class Qwen3Moe(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg = cfg
        self.embed_tokens = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg.num_hidden_layers))
        self.dropout = nn.Dropout(cfg.dropout)
        self.norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.lm_head = nn.Linear(cfg.hidden_size, cfg.vocab_size, bias=False)
        self.init_weights()

    def init_weights(self):
        depth_scale = 1 / math.sqrt(2 * self.cfg.num_hidden_layers)
        for name, param in self.named_parameters():
            if param.dim() != 2:
                continue
            ends_block = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(param, std=0.04 * (depth_scale if ends_block else 1.0))

    def forward(self, ids):
        """Logits, the mean balance loss of the layers, and each layer's expert shares."""
        cos, sin = rope_table(self.cfg, ids.shape[1], ids.device)
        x = self.dropout(self.embed_tokens(ids))
        balances, shares = [], []
        for layer in self.layers:
            x, balance, share = layer(x, cos, sin)
            balances.append(balance)
            shares.append(share)
        return self.lm_head(self.norm(x)), torch.stack(balances).mean(), torch.stack(shares)


def hf_tensors(model: Qwen3Moe) -> dict:
    """The weights in bf16 under Hugging Face names, one tensor per expert projection."""
    cfg, out = model.cfg, {}
    for name, param in model.state_dict().items():
        value = param.detach().to("cpu", torch.bfloat16)
        full = name if name.startswith("lm_head") else f"model.{name}"
        prefix, _, proj = full.rpartition(".mlp.")
        if proj in ("gate_proj.weight", "up_proj.weight", "down_proj.weight"):
            dim = 1 if proj.startswith("down") else 0
            for expert, part in enumerate(value.split(cfg.moe_intermediate_size, dim=dim)):
                out[f"{prefix}.mlp.experts.{expert}.{proj}"] = part.contiguous()
        else:
            out[full] = value.contiguous()
    return out


def export(model: Qwen3Moe, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(hf_tensors(model), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(model.cfg.to_hf(), indent=2) + "\n")
