"""The differentiable forward pass over one packed row, with Hugging Face's parameter names.

Law: no batch dimension and no cache; packing is the caller's business, generation the engine's. The same
code runs in fp32, in bf16, and in fp32 under bf16 autocast, where the residual stream stays fp32.

    tokens_T, positions_T, mask ─► hidden_TD ─► logits_TV      (ask logits only where a token is trained)

Shapes: T tokens, D width, V words.
"""
# torch leaves much of what it offers without types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from muster.model.attention import Block, Mask, attend, rope_tables, rotate
from muster.model.config import LlamaConfig

__all__ = ["Block", "Llama", "LlamaConfig", "Mask"]


class RMSNorm(nn.Module):
    """x / rms(x) * weight, the mean square in fp32 (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (self.weight * wide.to(x.dtype)).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        c = config
        self.head_width = c.head_width
        self.q_proj = nn.Linear(c.width, c.heads * c.head_width, bias=c.qkv_bias)
        self.k_proj = nn.Linear(c.width, c.kv_heads * c.head_width, bias=c.qkv_bias)
        self.v_proj = nn.Linear(c.width, c.kv_heads * c.head_width, bias=c.qkv_bias)
        self.o_proj = nn.Linear(c.heads * c.head_width, c.width, bias=False)

    def forward(self, x_TD: Tensor, cos_TW: Tensor, sin_TW: Tensor, mask: Mask) -> Tensor:
        q, k, v = (
            projection(x_TD).unflatten(-1, (-1, self.head_width))
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        cos_TW, sin_TW = cos_TW.to(q.dtype), sin_TW.to(q.dtype)
        mixed_THW = attend(rotate(q, cos_TW, sin_TW), rotate(k, cos_TW, sin_TW), v, mask)
        return self.o_proj(mixed_THW.flatten(1))


class MLP(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.mlp_width, bias=False)
        self.up_proj = nn.Linear(config.width, config.mlp_width, bias=False)
        self.down_proj = nn.Linear(config.mlp_width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.width, config.rms_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.width, config.rms_eps)
        self.mlp = MLP(config)

    def forward(self, x_TD: Tensor, cos_TW: Tensor, sin_TW: Tensor, mask: Mask) -> Tensor:
        x_TD = x_TD + self.self_attn(self.input_layernorm(x_TD), cos_TW, sin_TW, mask)
        return x_TD + self.mlp(self.post_attention_layernorm(x_TD))


class Body(nn.Module):
    """Everything under `model.` in the checkpoint's names."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.rms_eps)


class Llama(nn.Module):
    """`state_dict()` has Hugging Face's names; with tied embeddings there is no `lm_head.weight`.

    Example:
        config, state = load(folder, torch.float32)
        model = Llama.from_state(config, state)
        logits_TV = model.logits(model.hidden(tokens_T, torch.arange(len(tokens_T))))
    """

    def __init__(self, config: LlamaConfig, *, checkpointing: bool = False) -> None:
        """`checkpointing` recomputes each layer in the backward pass: less memory, a third more time."""
        super().__init__()
        self.config = config
        self.checkpointing = checkpointing
        self.model = Body(config)
        if not config.tied_embeddings:
            self.lm_head = nn.Linear(config.width, config.vocab_size, bias=False)

    @classmethod
    def from_state(cls, config: LlamaConfig, state: Mapping[str, Tensor], *, checkpointing: bool = False) -> Llama:
        """A model that holds the tensors of `state` themselves, without a copy, in their dtype."""
        with torch.device("meta"):
            model = cls(config, checkpointing=checkpointing)
        model.load_state_dict(dict(state), assign=True)
        return model.requires_grad_(True)

    def hidden(self, tokens_T: Tensor, positions_T: Tensor, mask: Mask = None) -> Tensor:
        """Final normalised hidden states (T, D) of one packed row.

        tokens_T, positions_T: integer tensors; siblings behind a shared prompt repeat its next positions.
        mask: see `attention.Mask`; None is plain causal attention over the row.
        """
        x_TD = self.model.embed_tokens(tokens_T)
        cos_TW, sin_TW = rope_tables(positions_T, self.config.head_width, self.config.rope_theta)
        for layer in self.model.layers:
            if self.checkpointing and torch.is_grad_enabled():
                x_TD = checkpoint(layer, x_TD, cos_TW, sin_TW, mask, use_reentrant=False)
            else:
                x_TD = layer(x_TD, cos_TW, sin_TW, mask)
        return self.model.norm(x_TD)

    def logits(self, hidden_TD: Tensor) -> Tensor:
        """(T, V) before temperature; in the dtype of the matrix product, so cast before a softmax."""
        tied = self.config.tied_embeddings
        return F.linear(hidden_TD, self.model.embed_tokens.weight if tied else self.lm_head.weight)
