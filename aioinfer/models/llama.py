"""The Llama family (Touvron et al., arXiv:2302.13971, and its descendants): pre-norm decoder, rotary
grouped-query attention, SwiGLU.

Axes: T tokens of the step, H query heads, K key-value heads, D head size, V vocabulary, S sampled rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from aioinfer.models.layers import GatedMLP, RMSNorm, RotaryEmbedding
from aioinfer.models.linear import Linear, empty_parameter

if TYPE_CHECKING:
    from torch import Tensor

    from aioinfer.models.attention.base import StepAttention
    from aioinfer.models.batch import ForwardBatch
    from aioinfer.models.interface import ModelConfig
    from aioinfer.models.linear import FactoryArgs


class LlamaAttention(nn.Module):
    """Queries, keys and values in one product; rotation of queries and keys in one go."""

    def __init__(self, config: ModelConfig, rotary: RotaryEmbedding, factory: FactoryArgs) -> None:
        super().__init__()
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        width = (heads + 2 * kv_heads) * head_dim
        self.qkv_proj = Linear(config.hidden_size, width, bias=config.attention_bias, factory=factory)
        self.o_proj = Linear(
            heads * head_dim, config.hidden_size, bias=config.attention_bias, factory=factory
        )
        self._heads = (heads, kv_heads, kv_heads)
        self._head_dim = head_dim
        self.rotary = rotary

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attention: StepAttention, layer: int) -> Tensor:
        heads, kv_heads, _ = self._heads
        qkv = self.qkv_proj(x).unflatten(-1, (-1, self._head_dim))
        turned = self.rotary(qkv[:, : heads + kv_heads], cos, sin)
        query, key = turned.split((heads, kv_heads), dim=1)
        y: Tensor = self.o_proj(attention(layer, query, key, qkv[:, heads + kv_heads :]))
        return y


class LlamaLayer(nn.Module):
    """Attention and feed-forward, each behind a norm; the residual is added to in place by the next norm."""

    def __init__(self, config: ModelConfig, rotary: RotaryEmbedding, factory: FactoryArgs) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, factory)
        self.self_attn = LlamaAttention(config, rotary, factory)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, factory)
        self.mlp = GatedMLP(
            config.hidden_size, config.intermediate_size, bias=config.mlp_bias, factory=factory
        )

    def forward(
        self,
        update: Tensor | None,
        residual: Tensor,
        cos: Tensor,
        sin: Tensor,
        attention: StepAttention,
        layer: int,
    ) -> Tensor:
        """Take the previous layer's update [T, hidden], return this one's."""
        x = self.input_layernorm(update, residual)
        x = self.self_attn(x, cos, sin, attention, layer)
        y: Tensor = self.mlp(self.post_attention_layernorm(x, residual))
        return y


class LlamaModel(nn.Module):
    def __init__(self, config: ModelConfig, max_position: int, factory: FactoryArgs) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, factory)
        self.rotary = RotaryEmbedding(
            config.rope, config.rotary_dim, max_position, config.max_position, factory
        )
        self.layers = nn.ModuleList(
            LlamaLayer(config, self.rotary, factory) for _ in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, factory)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states [S, hidden] of the tokens to sample after."""
        residual = self.embed_tokens(batch.input_ids)
        cos, sin = self.rotary.at(batch.positions)
        update: Tensor | None = None
        for index, layer in enumerate(self.layers):
            update = layer(update, residual, cos, sin, batch.attention, index)
        if batch.sample_tokens is not None and update is not None:
            residual = residual.index_select(0, batch.sample_tokens)
            update = update.index_select(0, batch.sample_tokens)
        y: Tensor = self.norm(update, residual)
        return y


class Embedding(nn.Module):
    """Rows of a [V, hidden] table."""

    def __init__(self, vocab_size: int, hidden: int, factory: FactoryArgs) -> None:
        super().__init__()
        self.weight = empty_parameter(vocab_size, hidden, factory)

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)


class LlamaForCausalLM(nn.Module):
    """Args:
    config: sizes.
    max_position: longest sequence to be served.
    factory: where the parameters are made.
    """

    packed: ClassVar[dict[str, tuple[str, ...]]] = {
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
    }
    """Modules here that hold several of the checkpoint's, one above the other."""

    def __init__(self, config: ModelConfig, max_position: int, factory: FactoryArgs) -> None:
        super().__init__()
        self.config = config
        self.model = LlamaModel(config, max_position, factory)
        tied = self.model.embed_tokens.weight if config.tie_word_embeddings else None
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False, factory=factory, weight=tied)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Logits [S, V] in float32."""
        hidden: Tensor = self.model(batch)
        if len(hidden) == 0:  # a step of nothing but unfinished prompts
            return hidden.new_empty((0, self.config.vocab_size), dtype=torch.float32)
        logits: Tensor = self.lm_head(hidden)
        return logits.float()
