"""From logits to token ids, on the device, for a whole step at once.

A draw is the inverse of the cumulative distribution, over the vocabulary in order of ids, at one uniform
number per row that the host computed (`aioinfer.runner.random`); so no generator state lives on the device.
Filters become one threshold per row on the logits; rows that need no filter pay for none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

NUCLEUS_GUESS = 1024
"""On the CPU, top-p first looks among this many most likely tokens, which is cheaper than sorting all."""


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """How to draw for the S sampled rows; R of them at random.

    Attributes:
        random_rows: [R] rows that draw; None when all do.
        temperatures, uniforms: [R] float64; temperatures above 0, uniforms in [0, 1).
        top_ks: [R] int64, V where all tokens are kept.
        top_ps, min_ps: [R] float64; 1 and 0 where they keep all tokens.
        max_top_k: the largest top-k that filters; 0 when none does.
        any_top_p, any_min_p: whether any row filters so.
    """

    random_rows: Tensor | None
    temperatures: Tensor
    uniforms: Tensor
    top_ks: Tensor
    top_ps: Tensor
    min_ps: Tensor
    max_top_k: int
    any_top_p: bool
    any_min_p: bool

    @property
    def num_random(self) -> int:
        """R."""
        return len(self.temperatures)


def sample(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """Token ids [S] for logits [S, V] in float32, which may be overwritten."""
    if batch.num_random == 0:
        return logits.argmax(dim=-1)
    if batch.random_rows is None:
        return _draw(logits, batch)
    tokens = logits.argmax(dim=-1)
    return tokens.index_copy_(0, batch.random_rows, _draw(logits[batch.random_rows], batch))


def _draw(logits: Tensor, batch: SamplingBatch) -> Tensor:
    logits = logits.div_(batch.temperatures.to(logits.dtype)[:, None])
    threshold = _threshold(logits, batch)
    if threshold is not None:
        logits.masked_fill_(logits < threshold, -torch.inf)
    # In double precision: the rounding of a float32 running sum exceeds the probability of many tokens.
    cumulative = torch.softmax(logits, dim=-1).cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    target = torch.minimum(batch.uniforms[:, None] * total, total * (1 - 2.0**-52))
    return torch.searchsorted(cumulative, target, right=True).squeeze(1)


def _threshold(logits: Tensor, batch: SamplingBatch) -> Tensor | None:
    """The least logit [R, 1] that a row keeps: top-k, then top-p of what is left, and min-p."""
    threshold: Tensor | None = None
    if batch.max_top_k:
        threshold = _top_k_threshold(logits, batch)
    if batch.any_top_p:
        kept = logits if threshold is None else logits.masked_fill(logits < threshold, -torch.inf)
        threshold = _maximum(threshold, _top_p_threshold(kept, batch.top_ps))
    if batch.any_min_p:
        floor = logits.amax(dim=-1, keepdim=True) + batch.min_ps.log().to(logits.dtype)[:, None]
        threshold = _maximum(threshold, floor)
    return threshold


def _maximum(first: Tensor | None, second: Tensor) -> Tensor:
    return second if first is None else torch.maximum(first, second)


def _top_k_threshold(logits: Tensor, batch: SamplingBatch) -> Tensor:
    best = logits.topk(batch.max_top_k, dim=-1).values
    index = (batch.top_ks - 1).clamp(max=batch.max_top_k - 1)[:, None]
    keeps_all = batch.top_ks[:, None] > batch.max_top_k
    return best.gather(1, index).masked_fill_(keeps_all, -torch.inf)


def _top_p_threshold(logits: Tensor, top_ps: Tensor) -> Tensor:
    """The least logit [R, 1] of the smallest set of most likely tokens that reaches top-p."""
    normaliser = logits.logsumexp(dim=-1, keepdim=True)
    count = logits.shape[1]
    if logits.device.type == "cpu" and count > NUCLEUS_GUESS:
        best = logits.topk(NUCLEUS_GUESS, dim=-1).values
        reached = (best - normaliser).exp_().sum(dim=-1, dtype=torch.float64)
        if bool(((reached >= top_ps) | (top_ps >= 1)).all()):
            return _nucleus(best, normaliser, top_ps)
    return _nucleus(logits.sort(dim=-1, descending=True).values, normaliser, top_ps)


def _nucleus(descending: Tensor, normaliser: Tensor, top_ps: Tensor) -> Tensor:
    probabilities = (descending - normaliser).exp_()
    before = probabilities.cumsum(dim=-1, dtype=torch.float64) - probabilities
    last = (before < top_ps[:, None]).sum(dim=-1, keepdim=True).sub_(1).clamp_(min=0)
    return descending.gather(1, last).masked_fill_(top_ps[:, None] >= 1, -torch.inf)
