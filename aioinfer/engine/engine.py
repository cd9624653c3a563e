"""The coroutine API: an engine that lives on the caller's event loop.

Owns the step loop's task, the submission thread and the text pool; gives all of them back when it is closed.
Installs no signal handlers, starts no processes, and restores the interpreter settings that it changes.
"""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from aioinfer.config import EngineConfig
from aioinfer.device import open_device
from aioinfer.device.host_memory import return_freed_memory
from aioinfer.device.thread import DeviceThread
from aioinfer.engine import guest
from aioinfer.engine.admission import Admission
from aioinfer.engine.info import EngineInfo, EngineState
from aioinfer.engine.intake import Intake
from aioinfer.engine.loading import Loader, read_chat_template
from aioinfer.engine.loop import StepLoop
from aioinfer.engine.stream import RequestStream
from aioinfer.errors import ConfigError, EngineClosed, EngineFailed, InvalidRequest, WrongLoop
from aioinfer.scheduling import Scheduler, SchedulerLimits
from aioinfer.telemetry import EngineStats, LoopLagProbe, Metrics
from aioinfer.text.chat import ChatTemplate, validate_messages
from aioinfer.text.pool import TextPool
from aioinfer.text.tokenizer import load_tokenizer
from aioinfer.types import Completion, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import TracebackType

    from aioinfer.device.base import Device
    from aioinfer.engine.loop import Runner
    from aioinfer.engine.request import Request
    from aioinfer.models.progress import Progress
    from aioinfer.text.tokenizer import Tokenizer
    from aioinfer.types import TextAssets


@dataclass(frozen=True, slots=True)
class _Parts:
    """What loading a model gives."""

    info: EngineInfo
    runner: Runner
    tokenizer: Tokenizer
    template: ChatTemplate | None


@dataclass(frozen=True, slots=True)
class _Serving:
    """What exists while a model is loaded."""

    info: EngineInfo
    scheduler: Scheduler
    admission: Admission
    intake: Intake
    loop: StepLoop
    task: asyncio.Task[None]


class Engine:
    """An inference engine, open between `__aenter__` and `aclose` on one event loop.

    Args:
        model: a local directory, a .gguf file, a hub id or the default model's name.
        config: every option at once, instead of `model` and `options`.
        progress: told how downloading and loading go, from another thread.
        options: fields of `EngineConfig`.

    Raises:
        ConfigError: an option is unknown or has a value that cannot be used.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        config: EngineConfig | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> None:
        if config is not None and (model is not None or options):
            raise ConfigError("pass either config, or a model and options")
        if model is not None:
            options["model"] = str(model)
        self.config = config or EngineConfig.create(**options)
        self.state = EngineState.NEW
        self.failure: EngineFailed | None = None
        self.metrics = Metrics(self.stats, display_name(self.config.model))
        self._progress = progress
        self._loading_cancelled = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: DeviceThread | None = None
        self._pool: TextPool | None = None
        self._serving: _Serving | None = None
        self._lag = LoopLagProbe(self.metrics.loop_lag.observe)
        self._is_guest = False

    @property
    def info(self) -> EngineInfo:
        """What is served.

        Raises:
            EngineClosed: no model is loaded.
        """
        return self._require_serving().info

    def stats(self) -> EngineStats:
        """What the engine holds right now, read from the state itself."""
        if self._serving is None:
            return EngineStats(
                num_running=0,
                num_waiting=0,
                num_preempted=0,
                num_kv_blocks=0,
                num_kv_blocks_used=0,
                waiting_tokens=0,
            )
        scheduler = self._serving.scheduler
        return EngineStats(
            num_running=scheduler.num_running,
            num_waiting=self._serving.admission.num_waiting,
            num_preempted=scheduler.num_preempted,
            num_kv_blocks=scheduler.pool.capacity,
            num_kv_blocks_used=scheduler.pool.num_used,
            waiting_tokens=scheduler.num_waiting_tokens,
        )

    async def __aenter__(self) -> Self:
        """Open the device and load the model.

        Raises:
            ModelError: the model cannot be used.
            BackendUnavailable: the device cannot.
            ConfigError: an option does not fit the model or the device.
        """
        if self.state is not EngineState.NEW:
            raise EngineClosed(f"an engine is entered once; this one is {self.state}")
        self.state = EngineState.LOADING
        self._loop = asyncio.get_running_loop()
        guest.enter(self.config.switch_interval_s)
        self._is_guest = True
        try:
            await self._open()
        except BaseException as error:
            # What a closing of the engine did to its loading says nothing to who loads it.
            closed = self._loading_cancelled.is_set() and not _is_cancelled()
            await self._close()
            if closed:
                raise EngineClosed("the engine was closed while it loaded") from error
            raise
        self.state = EngineState.READY
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose(drain_s=None if exc is None else 0)

    async def aclose(self, drain_s: float | None = None) -> None:
        """Refuse new requests, let running ones finish, then give everything back.

        Args:
            drain_s: how long requests may finish, in seconds; those left end with finish reason `abort`.
                None takes the configured bound.

        Raises:
            WrongLoop: called on another loop than the engine's.
        """
        if self._thread is not None:
            self._check_loop()
        try:
            # One that another task drains already is waited for, too.
            if self.state in (EngineState.READY, EngineState.DRAINING) and self._serving is not None:
                self.state = EngineState.DRAINING
                await _drain(self._serving.loop, self.config.drain_s if drain_s is None else drain_s)
        finally:
            await self._close()

    def terminate(self) -> None:
        """End every request and take no more, at once; `aclose` then only collects the threads."""
        self._loading_cancelled.set()
        self.state = EngineState.CLOSED
        if self._serving is not None:
            self._serving.loop.abort_all()
            self._serving.task.cancel()
        if self._thread is not None:
            self._thread.terminate()

    def stream(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        **sampling: Any,
    ) -> RequestStream:
        """Generate after a prompt.

        Args:
            prompt: text, or token ids.
            params: how to sample and when to stop; or name its fields: ``max_tokens=64``.
            request_id: a name for logs and answers.

        Raises:
            InvalidRequest: a parameter is wrong; what the prompt has wrong is raised when the stream starts.
        """
        return self._stream(params, sampling, request_id, lambda intake: partial(intake.from_prompt, prompt))

    def stream_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        **sampling: Any,
    ) -> RequestStream:
        """Generate the assistant's next message, through the model's chat template.

        Args:
            messages: as in OpenAI's chat API: mappings with `role` and `content`.
            params, request_id, sampling: as for `stream`.

        Raises:
            InvalidRequest: a parameter or message is wrong.
        """
        validate_messages(messages)
        return self._stream(
            params, sampling, request_id, lambda intake: partial(intake.from_messages, messages)
        )

    async def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        **sampling: Any,
    ) -> Completion:
        """`stream`, awaited."""
        return await self.stream(prompt, params, request_id=request_id, **sampling)

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        **sampling: Any,
    ) -> Completion:
        """`stream_chat`, awaited."""
        return await self.stream_chat(messages, params, request_id=request_id, **sampling)

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text.

        Raises:
            InvalidRequest: it is not valid Unicode.
        """
        return await self._require_ready().intake.encode(text, add_special_tokens=add_special_tokens)

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids.

        Raises:
            InvalidRequest: an id is outside the vocabulary.
        """
        intake = self._require_ready().intake
        return await intake.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def _stream(
        self,
        params: SamplingParams | None,
        sampling: dict[str, Any],
        request_id: str | None,
        prepare: Callable[[Intake], Callable[[SamplingParams, str], Awaitable[Request]]],
    ) -> RequestStream:
        if params is not None and sampling:
            raise InvalidRequest("pass either params, or its fields by name", param="params")
        params = _sampling_params(sampling) if params is None else params
        if not isinstance(params, SamplingParams):
            raise InvalidRequest(
                f"params must be SamplingParams, got {type(params).__name__}; or name its fields",
                param="params",
            )
        request_id = request_id or uuid.uuid4().hex

        async def start() -> Request:
            request = await prepare(self._require_ready().intake)(params, request_id)
            self._require_ready().loop.add(request)
            return request

        return RequestStream(request_id, start, self._abort)

    def _abort(self, request: Request) -> None:
        if self._serving is not None:
            self._serving.loop.abort(request)

    def _require_serving(self) -> _Serving:
        if self._serving is None:
            raise EngineClosed(f"the engine is {self.state}; use it inside 'async with Engine(...)'")
        return self._serving

    def _check_loop(self) -> None:
        if self._loop is not None and asyncio.get_running_loop() is not self._loop:
            raise WrongLoop("the engine belongs to the event loop that entered it; open one per loop")

    def _require_ready(self) -> _Serving:
        """Raises:
        WrongLoop, EngineFailed, EngineClosed: requests cannot be taken here and now.
        """
        self._check_loop()
        if self.failure is not None:
            error = EngineFailed(str(self.failure))
            error.__cause__ = self.failure.__cause__
            raise error
        if self.state is not EngineState.READY:
            raise EngineClosed(f"the engine is {self.state}, and takes requests only when it is ready")
        return self._require_serving()

    def _check_loading(self) -> None:
        if self._loading_cancelled.is_set():
            raise EngineClosed("the engine was closed while it loaded")

    async def _open(self) -> None:
        self._pool = TextPool(self.config.text_threads)
        self._thread = DeviceThread(partial(open_device, self.config), asyncio.get_running_loop())
        device = await self._thread.open()
        self._check_loading()
        parts = await self._load(device, self._thread, self._pool)
        self._check_loading()
        self._serving = self._serve(parts, self._thread, self._pool)
        self._lag.start()
        guest.freeze_garbage()

    async def _load(self, device: Device, thread: DeviceThread, pool: TextPool) -> _Parts:
        loader = Loader(self.config, self._progress, self._loading_cancelled)
        checkpoint = await thread.submit(loader.open_checkpoint)
        loaded, (tokenizer, template) = await asyncio.gather(
            thread.submit(partial(loader.load, checkpoint, device)),
            pool.run(_load_text, checkpoint.text, self.config.chat_template),
        )
        info = EngineInfo(
            model=display_name(self.config.model),
            device=device.name,
            dtype=loaded.dtype,
            max_model_len=loaded.max_model_len,
            vocab_size=checkpoint.config.vocab_size,
            block_size=self.config.block_size,
            num_kv_blocks=loaded.num_blocks - 1,
            max_num_seqs=self.config.max_num_seqs,
            has_chat_template=template is not None,
        )
        return _Parts(info, loaded.runner, tokenizer, template)

    def _serve(self, parts: _Parts, thread: DeviceThread, pool: TextPool) -> _Serving:
        config, info = self.config, parts.info
        scheduler = Scheduler(
            SchedulerLimits(
                max_num_seqs=info.max_num_seqs,
                token_budget=config.token_budget,
                num_blocks=info.num_kv_blocks + 1,
                block_size=info.block_size,
            )
        )
        admission = Admission(
            scheduler,
            max_waiting=config.max_waiting,
            max_waiting_tokens=config.max_waiting_tokens,
            rejected=self.metrics.rejected,
        )
        step_loop = StepLoop(
            scheduler=scheduler,
            runner=parts.runner,
            thread=thread,
            depth=config.pipeline_depth,
            slow_consumer_s=config.slow_consumer_s,
            metrics=self.metrics,
            on_end=admission.request_ended,
            on_failure=self._fail,
        )
        intake = Intake(info, parts.tokenizer, parts.template, pool, admission)
        task = asyncio.get_running_loop().create_task(step_loop.run(), name="aioinfer-step-loop")
        return _Serving(info, scheduler, admission, intake, step_loop, task)

    def _fail(self, error: EngineFailed) -> None:
        self.failure = error
        self.state = EngineState.FAILED
        if self._serving is not None:
            self._serving.loop.fail_all(error)
            self._serving.task.cancel()

    async def _close(self) -> None:
        """Give everything back, what needs no waiting first; idempotent, and safe to be cancelled in."""
        self.terminate()
        serving, self._serving = self._serving, None
        thread, self._thread = self._thread, None
        pool, self._pool = self._pool, None
        self._lag.stop()
        if self._is_guest:
            self._is_guest = False
            guest.leave()
        try:
            if thread is not None:
                await thread.aclose()
            if serving is not None:
                await asyncio.wait([serving.task])
                del serving  # and with it the model
        finally:
            if pool is not None:
                await _close_pool(pool)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _close_pool(pool: TextPool) -> None:
    try:
        await pool.run(return_freed_memory)
    finally:
        await pool.aclose()


async def _drain(loop: StepLoop, drain_s: float) -> None:
    try:
        async with asyncio.timeout(drain_s):
            await loop.wait_idle()
    except TimeoutError:
        loop.abort_all()


def display_name(model: str) -> str:
    """What a model is called in answers and metrics: a path by its last part, anything else as typed."""
    # Not pathlib's, which raise for a user who does not exist and a name that is too long.
    expanded = os.path.expanduser(model)
    if not os.path.exists(expanded):
        return model
    path = Path(expanded).resolve()
    return path.stem if path.suffix.lower() == ".gguf" else path.name


def _sampling_params(fields: dict[str, Any]) -> SamplingParams:
    known = SamplingParams.__slots__
    for name in fields:
        if name not in known:
            raise InvalidRequest(f"unknown parameter {name!r}; known are: {', '.join(known)}", param=name)
    if isinstance(fields.get("stop"), str):
        fields["stop"] = (fields["stop"],)
    for name in ("stop", "stop_token_ids"):
        if isinstance(fields.get(name), list):
            fields[name] = tuple(fields[name])
    return SamplingParams(**fields)


def _load_text(assets: TextAssets, template_path: str | None) -> tuple[Tokenizer, ChatTemplate | None]:
    source = assets.chat_template if template_path is None else read_chat_template(template_path)
    template = None if source is None else ChatTemplate(source, special_tokens=assets.special_tokens)
    return load_tokenizer(assets), template
