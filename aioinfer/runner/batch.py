"""From a StepPlan to the tensors of a step: one packed copy to the device, then views of it.

Keeps, on the host, what belongs to a slot for longer than a step: its block table and how it samples.
Called on the submission thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from aioinfer.device.staging import StagingRing
from aioinfer.models.attention.base import AttentionMetadata, DecodeGroup, PrefillChunk
from aioinfer.runner.random import uniform
from aioinfer.runner.sampler import SamplingBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from aioinfer.device.base import Device
    from aioinfer.scheduling.plan import SlotAssignment, StepPlan

    Ints = NDArray[np.int64]

MIN_TEMPERATURE = 1e-30
"""Logits divided by less may overflow float32, and by this all but equal ones are apart already."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Sizes of the buffers.

    Attributes:
        max_num_seqs: slots.
        token_budget: most tokens of a step.
        max_blocks: most blocks of a sequence.
        block_size: tokens per block.
        vocab_size: V.
        steps_in_flight: how many steps may be queued before the first is complete.
    """

    max_num_seqs: int
    token_budget: int
    max_blocks: int
    block_size: int
    vocab_size: int
    steps_in_flight: int


@dataclass(frozen=True, slots=True)
class StepTensors:
    """One step on the device.

    Attributes:
        token_ids: [T]; decode rows, which come first, hold no id yet.
        positions: [T].
        decode_slots: [num_decode] where to take the decode rows' ids from.
        sample_tokens: [S] indices in T of the tokens to sample after; None means every token.
        sample_slots: [S] where to put what was sampled.
        attention: of the step.
        sampling: of the S sampled rows.
    """

    token_ids: Tensor
    positions: Tensor
    decode_slots: Tensor
    sample_tokens: Tensor | None
    sample_slots: Tensor
    attention: AttentionMetadata
    sampling: SamplingBatch


class BatchBuilder:
    """Turns plans into tensors."""

    def __init__(self, limits: BatchLimits, device: Device) -> None:
        self._limits = limits
        self._device = device.torch_device
        slots = limits.max_num_seqs
        num_items = 3 * limits.token_budget + slots * (16 + 2 * limits.max_blocks)
        self._staging = StagingRing(device, limits.steps_in_flight + 1, num_items, torch.int64)
        self._block_tables: Ints = np.zeros((slots, limits.max_blocks), np.int64)
        self._temperatures = np.zeros(slots)
        self._top_ps = np.ones(slots)
        self._min_ps = np.zeros(slots)
        self._top_ks: Ints = np.zeros(slots, np.int64)
        self._seeds: Ints = np.zeros(slots, np.int64)

    def build(self, plan: StepPlan) -> StepTensors:
        """Apply the plan's assignments and copy the step to the device.  Does not wait for the copy."""
        for assignment in plan.new_slots:
            self._assign_slot(assignment)
        for block in plan.new_blocks:
            self._block_tables[block.slot, block.index] = block.block
        rows = _Rows.of(plan)
        packer = _Packer(self._staging.next())
        return self._step(plan, rows, packer)

    def _step(self, plan: StepPlan, rows: _Rows, packer: _Packer) -> StepTensors:
        token_rows = np.repeat(np.arange(len(rows.slots)), rows.lengths)
        within = np.arange(plan.num_tokens) - np.repeat(np.cumsum(rows.lengths) - rows.lengths, rows.lengths)
        positions = rows.starts[token_rows] + within
        blocks = self._block_tables[rows.slots[token_rows], positions // self._limits.block_size]
        sampled = np.flatnonzero(rows.samples)
        last_tokens = np.cumsum(rows.lengths)[sampled] - 1
        all_sampled = len(last_tokens) == plan.num_tokens

        packer.add("token_ids", np.array(plan.token_ids, np.int64))
        packer.add("positions", positions)
        packer.add("slot_mapping", blocks * self._limits.block_size + positions % self._limits.block_size)
        packer.add("slots", rows.slots)
        packer.add("sample_slots", rows.slots[sampled])
        packer.add("sample_tokens", last_tokens)
        sampling_flags = self._pack_sampling(rows, sampled, packer)
        groups = self._pack_decode_groups(plan.num_decode, rows, packer)
        self._pack_prefills(plan.num_decode, rows, packer)

        sent = packer.send(self._device)
        return StepTensors(
            token_ids=sent["token_ids"],
            positions=sent["positions"],
            decode_slots=sent["slots"][: plan.num_decode],
            sample_tokens=None if all_sampled else sent["sample_tokens"],
            sample_slots=sent["sample_slots"],
            attention=AttentionMetadata(
                slot_mapping=sent["slot_mapping"],
                num_decode=plan.num_decode,
                decode_groups=tuple(_decode_group(sent, index, group) for index, group in enumerate(groups)),
                prefill_chunks=tuple(_prefill_chunks(sent, plan.num_decode, rows)),
            ),
            sampling=_sampling_batch(sent, sampling_flags),
        )

    def _assign_slot(self, assignment: SlotAssignment) -> None:
        slot, params = assignment.slot, assignment.params
        self._temperatures[slot] = 0.0 if params.greedy else max(params.temperature, MIN_TEMPERATURE)
        self._top_ks[slot] = min(params.top_k or self._limits.vocab_size, self._limits.vocab_size)
        self._top_ps[slot] = params.top_p
        self._min_ps[slot] = params.min_p
        self._seeds[slot] = assignment.seed

    def _pack_sampling(self, rows: _Rows, sampled: Ints, packer: _Packer) -> _SamplingFlags:
        slots = rows.slots[sampled]
        random = np.flatnonzero(self._temperatures[slots] > 0)
        slots = slots[random]
        positions = (rows.starts + rows.lengths)[sampled][random]
        top_ks, top_ps, min_ps = self._top_ks[slots], self._top_ps[slots], self._min_ps[slots]
        packer.add("random_rows", random)
        packer.add("temperatures", self._temperatures[slots])
        packer.add("uniforms", uniform(self._seeds[slots], positions))
        packer.add("top_ks", top_ks)
        packer.add("top_ps", top_ps)
        packer.add("min_ps", min_ps)
        filtering = top_ks[top_ks < self._limits.vocab_size]
        return _SamplingFlags(
            all_random=len(random) == len(sampled),
            max_top_k=int(filtering.max()) if len(filtering) else 0,
            any_top_p=bool((top_ps < 1).any()),
            any_min_p=bool((min_ps > 0).any()),
        )

    def _pack_decode_groups(self, num_decode: int, rows: _Rows, packer: _Packer) -> list[_GroupShape]:
        """Group decode rows of which none has less than half the blocks of another.

        Gathering pads to the longest row of a group: so padding at most doubles the work, however unlike
        the rows are.
        """
        kv_lengths = rows.starts[:num_decode] + 1
        num_blocks = -(-kv_lengths // self._limits.block_size)
        groups: list[_GroupShape] = []
        left = np.argsort(num_blocks, kind="stable")
        while len(left):
            width = int(num_blocks[left[-1]])
            first = int(np.searchsorted(num_blocks[left], -(-width // 2)))
            members, left = np.sort(left[first:]), left[:first]
            prefix = f"group{len(groups)}"
            packer.add(f"{prefix}.rows", members)
            packer.add(f"{prefix}.kv_lengths", kv_lengths[members])
            packer.add(f"{prefix}.tables", self._block_tables[rows.slots[members], :width].ravel())
            groups.append(_GroupShape(width, is_all=len(members) == num_decode))
        return groups

    def _pack_prefills(self, num_decode: int, rows: _Rows, packer: _Packer) -> None:
        for row in range(num_decode, len(rows.slots)):
            num_blocks = -(-int(rows.starts[row] + rows.lengths[row]) // self._limits.block_size)
            packer.add(f"prefill{row}", self._block_tables[rows.slots[row], :num_blocks])


@dataclass(frozen=True, slots=True)
class _Rows:
    slots: Ints
    starts: Ints
    lengths: Ints
    samples: NDArray[np.bool_]

    @classmethod
    def of(cls, plan: StepPlan) -> _Rows:
        return cls(
            np.array(plan.slots, np.int64),
            np.array(plan.starts, np.int64),
            np.array(plan.lengths, np.int64),
            np.array(plan.samples, np.bool_),
        )


@dataclass(frozen=True, slots=True)
class _SamplingFlags:
    all_random: bool
    max_top_k: int
    any_top_p: bool
    any_min_p: bool


@dataclass(frozen=True, slots=True)
class _GroupShape:
    width: int
    is_all: bool


class _Packer:
    """Lays arrays one after another into one host buffer, and finds them again on the device.

    Floats travel as the bits of float64 among the int64.
    """

    def __init__(self, buffer: Tensor) -> None:
        self._buffer = buffer
        self._array = buffer.numpy()
        self._slices: dict[str, tuple[slice, torch.dtype]] = {}
        self._used = 0

    def add(self, name: str, values: Ints | NDArray[np.float64]) -> None:
        end = self._used + len(values)
        self._array[self._used : end] = values.view(np.int64)
        dtype = torch.float64 if values.dtype == np.float64 else torch.int64
        self._slices[name] = slice(self._used, end), dtype
        self._used = end

    def send(self, device: torch.device) -> dict[str, Tensor]:
        packed = self._buffer[: self._used].to(device, non_blocking=True)
        return {name: packed[where].view(dtype) for name, (where, dtype) in self._slices.items()}


def _decode_group(sent: dict[str, Tensor], index: int, shape: _GroupShape) -> DecodeGroup:
    return DecodeGroup(
        rows=None if shape.is_all else sent[f"group{index}.rows"],
        block_tables=sent[f"group{index}.tables"].view(-1, shape.width),
        kv_lengths=sent[f"group{index}.kv_lengths"],
    )


def _prefill_chunks(sent: dict[str, Tensor], num_decode: int, rows: _Rows) -> Iterator[PrefillChunk]:
    offset = num_decode
    for row in range(num_decode, len(rows.slots)):
        length = int(rows.lengths[row])
        yield PrefillChunk(offset, length, int(rows.starts[row]), sent[f"prefill{row}"])
        offset += length


def _sampling_batch(sent: dict[str, Tensor], flags: _SamplingFlags) -> SamplingBatch:
    return SamplingBatch(
        random_rows=None if flags.all_random else sent["random_rows"],
        temperatures=sent["temperatures"],
        uniforms=sent["uniforms"],
        top_ks=sent["top_ks"],
        top_ps=sent["top_ps"],
        min_ps=sent["min_ps"],
        max_top_k=flags.max_top_k,
        any_top_p=flags.any_top_p,
        any_min_p=flags.any_min_p,
    )
