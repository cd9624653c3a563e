"""An engine whose tokens the test writes: by hand, when it wants, or from a script.

Keeps the contract of `aioinfer.Engine` as far as the server uses it, with the real `RequestStream`, mailbox,
metrics and prompt checks, so that only the source of the tokens is made up.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from aioinfer import Completion, EngineConfig, EngineInfo, EngineState, FinishReason, RequestStream, Usage
from aioinfer.engine.admission import check_prompt_ids, resolve_max_tokens
from aioinfer.engine.mailbox import Mailbox
from aioinfer.errors import EngineClosed, Overloaded
from aioinfer.telemetry.metrics import EngineStats, Metrics
from aioinfer.text.chat import validate_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aioinfer import SamplingParams
    from aioinfer.errors import EngineFailed

MODEL = "scripted"
VOCAB_SIZE = 1000
MAX_MODEL_LEN = 100_000


@dataclass(eq=False)
class ScriptedRequest:
    """One request, as the test drives it."""

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    on_end: Callable[[ScriptedRequest], None]
    mailbox: Mailbox = field(default_factory=Mailbox)
    texts: list[str] = field(default_factory=list)
    reason: FinishReason | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def usage(self) -> Usage:
        return Usage(prompt_tokens=len(self.prompt_ids), completion_tokens=len(self.texts))

    def emit(self, *texts: str) -> None:
        """Generate a token for each text."""
        for text in texts:
            self.texts.append(text)
            self.mailbox.put(text, 7, time.monotonic())

    def finish(self, reason: FinishReason = FinishReason.STOP) -> None:
        if self.reason is None:
            self.reason = reason
            self.mailbox.finish("", reason, None, self.usage)
            self._end()

    def fail(self, error: Exception) -> None:
        self.reason = FinishReason.ERROR
        self.mailbox.fail(error)
        self._end()

    def completion(self) -> Completion:
        assert self.reason is not None
        return Completion(
            request_id=self.request_id,
            text="".join(self.texts),
            token_ids=(7,) * len(self.texts),
            finish_reason=self.reason,
            stop_reason=None,
            usage=self.usage,
        )

    def _end(self) -> None:
        self.ended.set()
        self.on_end(self)


class ScriptedEngine:
    """Args:
    script: texts of the tokens of every request, one per turn of the loop; None leaves it to the test,
        which gets each request from `next_request`.
    state: to start in.
    max_waiting: most requests at once.
    drain_s: how long closing waits.
    """

    def __init__(
        self,
        script: Iterable[str] | None = None,
        *,
        state: EngineState = EngineState.READY,
        max_waiting: int = 1024,
        drain_s: float = 30.0,
    ) -> None:
        self.script = None if script is None else tuple(script)
        self.state = state
        self.failure: EngineFailed | None = None
        self.config = EngineConfig(drain_s=drain_s)
        self.metrics = Metrics(self.stats, MODEL)
        self.may_load = asyncio.Event()
        self.loading = asyncio.Event()
        self.load_error: Exception | None = None
        self.may_admit = asyncio.Event()
        self.may_admit.set()
        self.admitting = asyncio.Event()
        self.given_up = asyncio.Event()
        self.running: set[ScriptedRequest] = set()
        self.num_requests = 0
        self._max_waiting = max_waiting
        self._started: asyncio.Queue[ScriptedRequest] = asyncio.Queue()
        self._idle = asyncio.Event()
        self._idle.set()
        self._writers: set[asyncio.Task[None]] = set()

    @property
    def info(self) -> EngineInfo:
        if self.state in (EngineState.NEW, EngineState.LOADING):
            raise EngineClosed(f"the engine is {self.state}")
        return EngineInfo(
            model=MODEL,
            device="script",
            dtype="none",
            max_model_len=MAX_MODEL_LEN,
            vocab_size=VOCAB_SIZE,
            block_size=16,
            num_kv_blocks=64,
            max_num_seqs=8,
            has_chat_template=True,
        )

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self.running),
            num_waiting=0,
            num_preempted=0,
            num_kv_blocks=64,
            num_kv_blocks_used=0,
            waiting_tokens=0,
        )

    async def __aenter__(self) -> Self:
        self.state = EngineState.LOADING
        self.loading.set()
        try:
            await self.may_load.wait()
            if self.load_error is not None:
                raise self.load_error
        except BaseException:
            self.state = EngineState.CLOSED
            raise
        self.state = EngineState.READY
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose(None if exc_info[0] is None else 0)

    async def aclose(self, drain_s: float | None = None) -> None:
        if self.state is EngineState.READY:
            self.state = EngineState.DRAINING
            try:
                async with asyncio.timeout(self.config.drain_s if drain_s is None else drain_s):
                    await self._idle.wait()
            except TimeoutError:
                pass
        self.terminate()

    def terminate(self) -> None:
        self.state = EngineState.CLOSED
        for request in tuple(self.running):
            request.finish(FinishReason.ABORT)

    async def next_request(self) -> ScriptedRequest:
        """The next one that was admitted."""
        return await self._started.get()

    async def wait_idle(self) -> None:
        """Until nothing runs."""
        await self._idle.wait()

    def stream(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
    ) -> RequestStream:
        ids = [1] * len(prompt) if isinstance(prompt, str) else list(prompt)
        return self._stream(ids, params, request_id, "prompt")

    def stream_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
    ) -> RequestStream:
        validate_messages(messages)
        return self._stream([1] * (3 * len(messages)), params, request_id, "messages")

    def _stream(
        self, prompt_ids: list[int], params: SamplingParams | None, request_id: str | None, name: str
    ) -> RequestStream:
        assert params is not None
        assert request_id is not None

        async def start() -> ScriptedRequest:
            if self.state is not EngineState.READY:
                raise EngineClosed(f"the engine is {self.state}")
            await self._admit()
            check_prompt_ids(prompt_ids, VOCAB_SIZE, param=name)
            resolve_max_tokens(len(prompt_ids), params.max_tokens, MAX_MODEL_LEN, param=name)
            return self._begin(ScriptedRequest(request_id, prompt_ids, params, self._ended))

        return RequestStream(request_id, start, _abort)  # type: ignore[arg-type]

    async def _admit(self) -> None:
        if len(self.running) >= self._max_waiting:
            raise Overloaded(f"at most {self._max_waiting} requests wait", retry_after_s=2.5)
        self.admitting.set()
        try:
            await self.may_admit.wait()
        except asyncio.CancelledError:
            self.given_up.set()
            raise

    def _begin(self, request: ScriptedRequest) -> ScriptedRequest:
        self.running.add(request)
        self.num_requests += 1
        self._idle.clear()
        if self.script is None:
            self._started.put_nowait(request)
        else:
            writer = asyncio.create_task(self._write(request, self.script))
            self._writers.add(writer)
            writer.add_done_callback(self._writers.discard)
        return request

    async def _write(self, request: ScriptedRequest, script: tuple[str, ...]) -> None:
        limit = request.params.max_tokens or len(script)
        for text in script[:limit]:
            if request.reason is not None:
                return
            request.emit(text)
            await asyncio.sleep(0)
        request.finish(FinishReason.LENGTH if limit < len(script) else FinishReason.STOP)

    def _ended(self, request: ScriptedRequest) -> None:
        self.running.discard(request)
        if not self.running:
            self._idle.set()


def _abort(request: ScriptedRequest) -> None:
    request.finish(FinishReason.ABORT)
