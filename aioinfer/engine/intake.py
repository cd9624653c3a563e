"""From what a caller asks to a queued request: admission, text work, checks, in this order.

Loop thread only; the text work itself runs in the text pool.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from aioinfer.engine.admission import (
    check_prompt_ids,
    check_room,
    check_stop_ids,
    resolve_max_tokens,
)
from aioinfer.engine.request import Request
from aioinfer.errors import InvalidRequest
from aioinfer.scheduling import Sequence as ScheduledSequence
from aioinfer.text.output import OutputText
from aioinfer.text.stops import StopStrings
from aioinfer.types import MAX_SEED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from aioinfer.engine.admission import Admission
    from aioinfer.engine.info import EngineInfo
    from aioinfer.text.chat import ChatTemplate
    from aioinfer.text.pool import TextPool
    from aioinfer.text.tokenizer import Tokenizer
    from aioinfer.types import SamplingParams

    Messages = Sequence[Mapping[str, Any]]


class Intake:
    """Args:
    info: what is served.
    tokenizer, template: the model's; without a template there is no chat.
    pool: where they work.
    admission: bounds.
    """

    def __init__(
        self,
        info: EngineInfo,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        pool: TextPool,
        admission: Admission,
    ) -> None:
        self._info = info
        self._tokenizer = tokenizer
        self._template = template
        self._pool = pool
        self._admission = admission
        self._seq_ids = itertools.count()
        self._random = random.Random()

    async def from_prompt(
        self, prompt: str | Sequence[int], params: SamplingParams, request_id: str
    ) -> Request:
        """A request that is ready to be queued.

        Raises:
            InvalidRequest: the prompt or a parameter does not fit the model.
            Overloaded: too much is waiting.
        """
        return await self._request(partial(self._prompt_ids, prompt), "prompt", params, request_id)

    async def from_messages(self, messages: Messages, params: SamplingParams, request_id: str) -> Request:
        """As `from_prompt`, through the chat template."""
        return await self._request(partial(self._chat_ids, messages), "messages", params, request_id)

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text."""
        encode = partial(self._tokenizer.encode, text, add_special_tokens=add_special_tokens)
        return await self._pool.run(encode)

    async def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of token ids."""
        _check_sequence(token_ids, param="token_ids")
        if token_ids:
            check_prompt_ids(token_ids, self._info.vocab_size, param="token_ids")
        decode = partial(self._tokenizer.decode, token_ids, skip_special_tokens=skip_special_tokens)
        return await self._pool.run(decode)

    async def _request(
        self,
        encode: Callable[[], Awaitable[Sequence[int]]],
        param: str,
        params: SamplingParams,
        request_id: str,
    ) -> Request:
        arrival_s = time.monotonic()
        check_stop_ids(params, self._info.vocab_size)
        with self._admission.place():
            prompt_ids = await encode()
        max_tokens = resolve_max_tokens(
            len(prompt_ids), params.max_tokens, self._info.max_model_len, param=param
        )
        self._admission.check_tokens(len(prompt_ids))
        sequence = ScheduledSequence(
            seq_id=next(self._seq_ids),
            tokens=list(prompt_ids),
            params=params,
            seed=self._random.randint(0, MAX_SEED) if params.seed is None else params.seed,
            max_tokens=max_tokens,
            eos_token_ids=self._tokenizer.eos_token_ids,
            arrival_s=arrival_s,
        )
        detokenizer = self._tokenizer.detokenizer(prompt_ids, skip_special_tokens=params.skip_special_tokens)
        return Request(request_id, sequence, OutputText(detokenizer, StopStrings(params.stop)), arrival_s)

    async def _prompt_ids(self, prompt: str | Sequence[int]) -> Sequence[int]:
        if isinstance(prompt, str):
            encode = partial(self._tokenizer.encode, prompt, max_num_tokens=self._info.max_model_len)
            prompt = await self._pool.run(encode)
        _check_sequence(prompt, param="prompt")
        ids: Sequence[int] = prompt
        check_room(len(ids), self._info.max_model_len, param="prompt")  # before looking at each of them
        check_prompt_ids(ids, self._info.vocab_size, param="prompt")
        return ids

    async def _chat_ids(self, messages: Messages) -> Sequence[int]:
        if self._template is None:
            raise InvalidRequest(
                "the model has no chat template: give one (chat_template, --chat-template), or use a prompt",
                param="messages",
                code="no_chat_template",
            )
        return await self._pool.run(self._render_and_encode, self._template, messages)

    def _render_and_encode(self, template: ChatTemplate, messages: Messages) -> list[int]:
        # The template writes every special token that belongs there, as in transformers.
        text = template.render(messages)
        return self._tokenizer.encode(
            text, add_special_tokens=False, max_num_tokens=self._info.max_model_len, param="messages"
        )


def _check_sequence(ids: object, *, param: str) -> None:
    """Refuse what is neither text nor a sequence that can hold token ids.

    Raises:
        InvalidRequest: `ids` is something else.
    """
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes | bytearray | memoryview):
        expected = "a string or a sequence of token ids" if param == "prompt" else "a sequence of token ids"
        raise InvalidRequest(f"{param} must be {expected}, got {type(ids).__name__}", param=param)
