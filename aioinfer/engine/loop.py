"""The step loop: plan, launch, commit, deliver.  One task on the engine's loop; it owns the requests.

Up to `depth` steps are in flight: while the device runs one, the next is planned and queued, and the tokens
of the last become text.  There is one wake-up per step, whatever the batch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Protocol

from aioinfer.errors import ConsumerTooSlow, EngineFailed, RequestFailed
from aioinfer.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from aioinfer.device.thread import DeviceThread
    from aioinfer.engine.request import Request
    from aioinfer.scheduling import Scheduler, Sequence, StepPlan
    from aioinfer.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

ROWS_PER_SLICE = 64
"""Rows whose text is made before other callbacks of the loop get a turn: about 0.3 ms."""


class Runner(Protocol):
    """What launches steps on the submission thread."""

    def launch(self, plan: StepPlan) -> Tensor:
        """Queue a step; the host tensor [S] holds its token ids once it is complete."""


class StepLoop:
    """Args:
    scheduler: plans and accounts.
    runner: launches.
    thread: where it launches.
    depth: most steps in flight.
    slow_consumer_s: how long output may stay unread before its request is ended.
    metrics: of the engine.
    on_end: called when a request has ended, however.
    on_failure: called once if a step or the loop itself fails.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: Runner,
        thread: DeviceThread,
        depth: int,
        slow_consumer_s: float,
        metrics: Metrics,
        on_end: Callable[[], None],
        on_failure: Callable[[EngineFailed], None],
    ) -> None:
        self.scheduler = scheduler
        self._runner = runner
        self._thread = thread
        self._depth = depth
        self._slow_consumer_s = slow_consumer_s
        self._metrics = metrics
        self._on_end = on_end
        self._on_failure = on_failure
        self._requests: dict[int, Request] = {}
        self._in_flight: deque[tuple[StepPlan, asyncio.Future[Tensor]]] = deque()
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._launch_is_due = False
        self._num_preemptions = 0

    @property
    def num_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    def add(self, request: Request) -> None:
        """Take a request; its first step is planned before the loop sleeps again."""
        self.scheduler.add(request.sequence)
        self._requests[request.sequence.seq_id] = request
        self._idle.clear()
        self._work.set()
        if not self._launch_is_due:  # once for all requests that arrive in this turn of the loop
            self._launch_is_due = True
            asyncio.get_running_loop().call_soon(self._launch_now)

    def abort(self, request: Request) -> None:
        """End a request at once; nothing happens if it has ended."""
        if request.finish_reason is None:
            self.scheduler.finish(request.sequence.seq_id, FinishReason.ABORT)
            self._end(request, FinishReason.ABORT, None)

    def abort_all(self) -> None:
        """End every request."""
        for request in list(self._requests.values()):
            self.abort(request)

    def fail_all(self, error: EngineFailed) -> None:
        """End every request with an error of its own, caused by `error`'s cause."""
        for request in list(self._requests.values()):
            failure = EngineFailed(str(error))
            failure.__cause__ = error.__cause__
            self._fail_request(request, failure)

    async def wait_idle(self) -> None:
        """Until no request is left."""
        await self._idle.wait()

    async def run(self) -> None:
        """Serve until cancelled.  A failure ends every request with it, and is reported once."""
        try:
            while True:
                await self._work.wait()
                await self._step()
        except Exception as cause:
            self._fail(cause)
        finally:
            self._abandon_in_flight()

    async def _step(self) -> None:
        self._launch()
        if not self._in_flight:
            self._work.clear()
            return
        plan, future = self._in_flight[0]
        sampled = (await future).tolist()
        self._in_flight.popleft()
        progress = self.scheduler.commit(plan, sampled)
        self._launch()
        self._metrics.step_finished(num_tokens=plan.num_tokens, num_preempted=self._new_preemptions())
        await self._deliver(progress)

    def _launch_now(self) -> None:
        self._launch_is_due = False
        try:
            self._launch()
        except Exception as cause:
            self._fail(cause)

    def _launch(self) -> None:
        while len(self._in_flight) < self._depth:
            plan = self.scheduler.plan()
            if plan is None:
                return
            self._mark_started(plan)
            self._in_flight.append((plan, self._thread.submit(partial(self._runner.launch, plan))))

    def _mark_started(self, plan: StepPlan) -> None:
        now_s = time.monotonic()
        for seq_id in plan.seq_ids[plan.num_decode :]:
            request = self._requests[seq_id]
            if request.started_s is None:
                request.started_s = now_s

    async def _deliver(self, progress: list[tuple[Sequence, int]]) -> None:
        """Turn the step's tokens into text for their readers."""
        now_s = time.monotonic()
        gaps: Counter[float] = Counter()
        for start in range(0, len(progress), ROWS_PER_SLICE):
            if start:
                await _breathe()
            for sequence, token in progress[start : start + ROWS_PER_SLICE]:
                request = self._requests.get(sequence.seq_id)
                if request is not None:  # else it has ended since the step was committed
                    self._deliver_safely(request, token, now_s, gaps)
        for gap_s, count in gaps.items():
            self._metrics.inter_token(gap_s, count)

    def _deliver_safely(self, request: Request, token: int, now_s: float, gaps: Counter[float]) -> None:
        try:
            self._deliver_token(request, token, now_s, gaps)
        except Exception as cause:
            logger.error("request %s failed", request.request_id, exc_info=cause)
            error = RequestFailed(f"request {request.request_id} failed: {cause!r}")
            error.__cause__ = cause
            self._fail_request(request, error)

    def _deliver_token(self, request: Request, token: int, now_s: float, gaps: Counter[float]) -> None:
        if request.last_token_s is None:
            request.first_token_s = now_s
        else:
            gaps[now_s - request.last_token_s] += 1
        request.last_token_s = now_s
        sequence = request.sequence
        reason = sequence.finish_reason
        stop = request.push(
            token, is_stop_token=reason is FinishReason.STOP, is_last=reason is not None, now_s=now_s
        )
        if stop is not None:
            self.scheduler.finish(sequence.seq_id, FinishReason.STOP, stop)
            self._end(request, FinishReason.STOP, stop)
        elif reason is not None:
            self._end(request, reason, sequence.stop_reason)
        else:
            self._check_consumer(request, now_s)

    def _check_consumer(self, request: Request, now_s: float) -> None:
        unread_s = request.mailbox.unread_since()
        if unread_s is not None and now_s - unread_s > self._slow_consumer_s:
            self._fail_request(
                request,
                ConsumerTooSlow(
                    f"nobody read the output of request {request.request_id} for {self._slow_consumer_s:g} s"
                ),
            )

    def _fail_request(self, request: Request, error: Exception) -> None:
        self.scheduler.finish(request.sequence.seq_id, FinishReason.ERROR)
        self._forget(request, FinishReason.ERROR)
        request.fail(error)

    def _end(self, request: Request, reason: FinishReason, stop_reason: str | int | None) -> None:
        self._forget(request, reason)
        request.finish(reason, stop_reason)

    def _forget(self, request: Request, reason: FinishReason) -> None:
        del self._requests[request.sequence.seq_id]
        if not self._requests:
            self._idle.set()
        self._on_end()
        arrival_s, now_s = request.arrival_s, time.monotonic()
        self._metrics.request_finished(
            reason=reason,
            prompt_tokens=request.sequence.num_prompt_tokens,
            completion_tokens=len(request.token_ids),
            queue_s=None if request.started_s is None else request.started_s - arrival_s,
            ttft_s=None if request.first_token_s is None else request.first_token_s - arrival_s,
            e2e_s=now_s - arrival_s,
        )

    def _abandon_in_flight(self) -> None:
        """Nobody will ask for these steps' results; one that failed has been reported by the first."""
        for _, future in self._in_flight:
            if not future.cancel() and not future.cancelled():
                future.exception()
        self._in_flight.clear()

    def _fail(self, cause: Exception) -> None:
        logger.error("a step failed", exc_info=cause)
        error = EngineFailed(f"a step failed: {cause!r}")
        error.__cause__ = cause
        self._on_failure(error)

    def _new_preemptions(self) -> int:
        before, self._num_preemptions = self._num_preemptions, self.scheduler.num_preemptions
        return self._num_preemptions - before


async def _breathe() -> None:
    """Let the loop's other callbacks run between two slices of a large step."""
    await asyncio.sleep(0)
