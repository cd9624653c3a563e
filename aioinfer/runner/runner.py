"""Runs a step: forward pass and sampling.  Called on the submission thread; queues work and does not wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from aioinfer.device.staging import StagingRing
from aioinfer.models.batch import ForwardBatch
from aioinfer.runner.batch import BatchBuilder
from aioinfer.runner.sampler import sample

if TYPE_CHECKING:
    from torch import Tensor, nn

    from aioinfer.device.base import Device
    from aioinfer.models.attention.base import AttentionBackend
    from aioinfer.runner.batch import BatchLimits
    from aioinfer.scheduling.plan import StepPlan


class ModelRunner:
    """One model on one device.

    Sampled tokens stay on the device, by slot, as the input of the next step: so a step can be launched
    before the host has seen what the last one sampled.
    """

    def __init__(
        self, model: nn.Module, attention: AttentionBackend, device: Device, limits: BatchLimits
    ) -> None:
        self._model = model
        self._attention = attention
        self._batches = BatchBuilder(limits, device)
        self._results = StagingRing(device, limits.steps_in_flight + 1, limits.max_num_seqs, torch.int64)
        self._last_tokens = torch.zeros(limits.max_num_seqs, dtype=torch.int64, device=device.torch_device)

    def launch(self, plan: StepPlan) -> Tensor:
        """Queue a step.

        Returns:
            The host tensor [S] that holds the sampled token ids once the step is complete, in order of the
            rows that sample.
        """
        step = self._batches.build(plan)
        input_ids = step.token_ids
        if plan.num_decode:
            input_ids[: plan.num_decode] = self._last_tokens.index_select(0, step.decode_slots)
        logits = self._model(
            ForwardBatch(
                input_ids=input_ids,
                positions=step.positions,
                sample_tokens=step.sample_tokens,
                attention=self._attention.begin(step.attention),
            )
        )
        result = self._results.next()[: len(step.sample_slots)]
        if len(step.sample_slots):
            tokens = sample(logits, step.sampling)
            self._last_tokens.index_copy_(0, step.sample_slots, tokens)
            result.copy_(tokens, non_blocking=True)
        return result
