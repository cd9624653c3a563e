"""The benchmark target without a network: an engine in this process, on the loop that measures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioinfer.cli.bench.measure import Observation
from aioinfer.errors import AioinferError
from aioinfer.types import SamplingParams

if TYPE_CHECKING:
    from aioinfer import Engine


class EngineTarget:
    """Answers prompts through the coroutine API of an open engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def request(self, prompt: str, output_tokens: int) -> Observation:
        """See `Target.request`."""
        params = SamplingParams(max_tokens=output_tokens, temperature=0.0, ignore_eos=True)
        observation = Observation()
        try:
            async with self._engine.stream(prompt, params) as stream:
                async for delta in stream:
                    if delta.text:
                        observation.saw_text()
                usage = stream.usage
        except AioinferError as error:
            observation.ended(error=f"{type(error).__name__}: {error}")
            return observation
        observation.prompt_tokens = usage.prompt_tokens
        observation.completion_tokens = usage.completion_tokens
        observation.cached_tokens = usage.cached_tokens
        observation.ended()
        return observation
