"""What an engine tells about itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EngineState(StrEnum):
    """Where an engine is in its life."""

    NEW = "new"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What an open engine serves, and how much of it.

    Attributes:
        model: display name.
        device, dtype: where and in which type it computes.
        max_model_len: longest prompt plus completion, in tokens.
        vocab_size: token ids go from 0 to one less.
        block_size: tokens per KV block.
        num_kv_blocks: blocks that requests can use.
        max_num_seqs: most requests in one step.
        has_chat_template: whether messages can be rendered.
    """

    model: str
    device: str
    dtype: str
    max_model_len: int
    vocab_size: int
    block_size: int
    num_kv_blocks: int
    max_num_seqs: int
    has_chat_template: bool

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.num_kv_blocks * self.block_size
