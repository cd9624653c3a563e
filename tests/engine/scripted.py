"""An engine without weights: scripted tokens through the real step loop, text stage and submission thread.

Tokens are bytes: token i is the byte i, from 256 on there are special tokens.  A script is a function from
the tokens so far to the next one; `gate` holds steps back on the submission thread.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from aioinfer.engine import Engine, EngineInfo
from aioinfer.engine.engine import _Parts
from aioinfer.scheduling import SchedulerLimits
from aioinfer.text.chat import ChatTemplate
from aioinfer.text.tokenizer import Tokenizer
from tests.scheduling.simulation import SimulatedDevice

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioinfer.device.base import Device
    from aioinfer.device.thread import DeviceThread
    from aioinfer.scheduling import StepPlan
    from aioinfer.text.pool import TextPool

EOS = 256
VOCAB_SIZE = 258
MAX_MODEL_LEN = 4096
CHAT_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def byte_tokenizer() -> Tokenizer:
    """Token i is the byte i; 256 and 257 are special."""
    alphabet = _byte_alphabet()
    backend = tokenizers.Tokenizer(models.BPE({alphabet[i]: i for i in range(256)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<eos>", special=True), AddedToken("<bos>", special=True)])
    return Tokenizer(backend, eos_token_ids=(EOS,))


def _byte_alphabet() -> dict[int, str]:
    """The character by which byte-level BPE writes each byte (GPT-2, Radford et al. 2019)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in alphabet]
    return alphabet | {byte: chr(256 + i) for i, byte in enumerate(others)}


def echo(tokens: list[int]) -> int:
    """The default script: letters that depend on all tokens so far."""
    value = 0
    for token in tokens:
        value = (value * 31 + token + 7) % 1_000_003
    return 97 + value % 26


def says(answer: str | bytes | list[int], *, after: str = ">") -> Callable[[list[int]], int]:
    """A script that answers a prompt that ends with `after`, and then ends."""
    ids = list(answer.encode() if isinstance(answer, str) else answer)
    mark = after.encode()[0]

    def script(tokens: list[int]) -> int:
        generated = len(tokens) - 1 - tokens.index(mark)
        return ids[generated] if generated < len(ids) else EOS

    return script


@dataclass(frozen=True, slots=True)
class StepResult:
    """Stands for the host tensor of a step."""

    ids: list[int]

    def tolist(self) -> list[int]:
        return self.ids


class ScriptedRunner:
    """Attributes:
    gate: steps wait for it on the submission thread.
    entered: set when a step has begun.
    plans: every plan, in order.
    error: raised by the next step.
    """

    def __init__(self, limits: SchedulerLimits, script: Callable[[list[int]], int]) -> None:
        self._device = SimulatedDevice(limits, script)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.plans: list[StepPlan] = []
        self.error: Exception | None = None

    def launch(self, plan: StepPlan) -> Any:
        self.entered.set()
        assert self.gate.wait(timeout=60)
        if self.error is not None:
            raise self.error
        self.plans.append(plan)
        return StepResult(self._device.run(plan))


class ScriptedEngine(Engine):
    """Args:
    script: what comes after the tokens of a sequence.
    num_kv_blocks: blocks that requests can use.
    options: of the engine.
    """

    def __init__(
        self, script: Callable[[list[int]], int] = echo, *, num_kv_blocks: int = 2048, **options: Any
    ) -> None:
        super().__init__("scripted", **options)
        self.script = script
        self.num_kv_blocks = num_kv_blocks
        self.runner: ScriptedRunner

    async def _load(self, device: Device, thread: DeviceThread, pool: TextPool) -> _Parts:
        info = EngineInfo(
            model="scripted",
            device="scripted",
            dtype="none",
            max_model_len=min(MAX_MODEL_LEN, self.num_kv_blocks * self.config.block_size),
            vocab_size=VOCAB_SIZE,
            block_size=self.config.block_size,
            num_kv_blocks=self.num_kv_blocks,
            max_num_seqs=self.config.max_num_seqs,
            has_chat_template=True,
        )
        limits = SchedulerLimits(
            max_num_seqs=info.max_num_seqs,
            token_budget=self.config.token_budget,
            num_blocks=info.num_kv_blocks + 1,
            block_size=info.block_size,
        )
        self.runner = ScriptedRunner(limits, self.script)
        template = ChatTemplate(CHAT_TEMPLATE, special_tokens={})
        return _Parts(info, self.runner, byte_tokenizer(), template)

    @property
    def scheduler(self) -> Any:
        assert self._serving is not None
        return self._serving.scheduler

    @property
    def step_loop(self) -> Any:
        assert self._serving is not None
        return self._serving.loop

    async def settle(self) -> None:
        """Until nothing is queued, running or in flight: every step has been committed."""
        while not self.scheduler.is_idle:
            await asyncio.sleep(0)
        assert self.scheduler.pool.num_used == 0
        self.scheduler.check_integrity()
        assert self.step_loop.num_requests == 0
