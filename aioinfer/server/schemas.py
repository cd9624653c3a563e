"""Request bodies: from bytes to typed, checked structures.

Everything a client can get wrong in a body ends here, or in `SamplingParams` and the engine, as an
`InvalidRequest` that names the parameter.  Parsing holds the GIL and the loop, hence the bound on bodies.
Pure: knows neither HTTP nor the engine.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    ValidationError,
)

from aioinfer.errors import InvalidRequest
from aioinfer.server import parameters
from aioinfer.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

# Each prompt is a request to the engine; a guess at what nobody exceeds who does not mean to flood.
MAX_PROMPTS = 256

# Likewise; each message and each part of a content takes some microseconds of the event loop.
MAX_MESSAGES = 4096
MAX_PARTS = 4096

ROLES = ("system", "user", "assistant")
_MESSAGE_FIELDS = ("role", "content", "name")
_INTEGER_LIMIT = 2.0**63


def parse_json_object(body: bytes | str, *, name: str = "body") -> dict[str, Any]:
    """The JSON object in `body`; of duplicate keys the last wins.

    Args:
        name: what the client calls it.

    Raises:
        InvalidRequest: there is none.
    """
    if not body.strip():
        raise InvalidRequest(f"the {name} is empty; send a JSON object", code="invalid_json")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(
            f"the {name} is not valid JSON: {error} (NaN, infinities and lone surrogates are none either)",
            code="invalid_json",
        ) from None
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"the {name} must be a JSON object, got {_json_type(value)}", code="invalid_json"
        )
    return value


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of a completion.

    Attributes:
        items: each one text or token ids.
        is_list: whether the client sent a list of prompts, so that errors name the index.
    """

    items: tuple[str | list[int], ...]
    is_list: bool


def _to_prompts(value: object) -> Prompts:
    if isinstance(value, str):
        return Prompts((value,), is_list=False)
    if not isinstance(value, list):
        raise _prompt_error(f"got {_json_type(value)}")
    if not value:
        raise InvalidRequest("prompt is empty", param="prompt", code="empty_prompt")
    # Sets of types, because a loop over a million ids would hold the event loop.
    kinds = set(map(type, value))
    if kinds == {int}:
        return Prompts((value,), is_list=False)
    if len(value) > MAX_PROMPTS and kinds <= {str, list}:
        raise _prompt_error(f"got {len(value)} prompts; at most {MAX_PROMPTS} go into one request")
    if kinds == {list}:
        for index, ids in enumerate(value):
            _check_ids(ids, f"prompt[{index}]")
        return Prompts(tuple(value), is_list=True)
    if kinds == {str}:
        return Prompts(tuple(value), is_list=True)
    expected = type(value[0]) if type(value[0]) in (str, int, list) else None
    index = _first_other(value, expected)
    raise _prompt_error(f"prompt[{index}] is {_json_type(value[index])}", f"prompt[{index}]")


def _check_ids(ids: list[Any], param: str) -> None:
    if not set(map(type, ids)) <= {int}:
        index = _first_other(ids, int)
        raise _prompt_error(f"{param}[{index}] is {_json_type(ids[index])}", f"{param}[{index}]")


def _first_other(values: list[Any], expected: type | None) -> int:
    """Index of the first value that is not of the expected type; a loop would hold the event loop."""
    types = list(map(type, values))
    return min(types.index(other) for other in set(types) - {expected})


def _prompt_error(problem: str, param: str = "prompt") -> InvalidRequest:
    return InvalidRequest(
        "prompt must be a string, a list of token ids, a list of strings or a list of lists of token ids; "
        + problem,
        param=param,
    )


def _to_messages(value: object) -> object:
    """Messages without fields that ask for nothing; what the engine checks is left to it."""
    if not isinstance(value, list):
        return value
    if len(value) > MAX_MESSAGES:
        raise InvalidRequest(
            f"messages has {len(value)} messages; at most {MAX_MESSAGES} are accepted", param="messages"
        )
    return [_to_message(message, f"messages[{index}]") for index, message in enumerate(value)]


def _to_message(message: object, path: str) -> object:
    if not isinstance(message, dict):
        return message
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequest(
            f"{path}.role must be one of {', '.join(ROLES)}, got {reprlib.repr(role)}", param=f"{path}.role"
        )
    content = message.get("content")
    if isinstance(content, list) and len(content) > MAX_PARTS:
        raise InvalidRequest(
            f"{path}.content has {len(content)} parts; at most {MAX_PARTS} are accepted",
            param=f"{path}.content",
        )
    return parameters.supported(message, _MESSAGE_FIELDS, parameters.MESSAGE, path=f"{path}.")


def _to_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())


class StreamOptions(_Body):
    """How to stream."""

    include_usage: bool | None = None


class GenerationRequest(_Body):
    """What chat and completions have in common.

    `user`, `metadata`, `safety_identifier` and `prompt_cache_key` label a request and change nothing.
    """

    unsupported: ClassVar[parameters.Table]

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: Annotated[list[str] | None, FailFast(), BeforeValidator(_to_list)] = None
    stop_token_ids: Annotated[list[int] | None, FailFast()] = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: dict[str, str] | None = Field(default=None, max_length=64)
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Self:
        """Check a body.

        Raises:
            InvalidRequest: a field is unknown, not supported, missing or of the wrong type.
        """
        fields = parameters.supported(fields, cls.model_fields, cls.unsupported)
        options = fields.get("stream_options")
        if isinstance(options, dict):
            fields["stream_options"] = parameters.supported(
                options, StreamOptions.model_fields, parameters.STREAM_OPTIONS, path="stream_options."
            )
        try:
            request = cls(**fields)
        except ValidationError as error:
            raise _invalid(error) from None
        if request.stream_options is not None and not request.stream:
            raise InvalidRequest("stream_options is for stream: true only", param="stream_options")
        return request

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a chunk that has the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling(self) -> SamplingParams:
        """How to sample, with OpenAI's defaults.

        Raises:
            InvalidRequest: a value is out of range.
        """
        names = (
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "seed",
            "ignore_eos",
            "skip_special_tokens",
        )
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        try:
            return SamplingParams(
                max_tokens=self._max_tokens(),
                stop=tuple(self.stop or ()),
                stop_token_ids=tuple(self.stop_token_ids or ()),
                **given,
            )
        except InvalidRequest as error:
            raise self.in_client_terms(error, 0) from None

    def in_client_terms(self, error: InvalidRequest, index: int) -> InvalidRequest:
        """The engine's error about choice `index`, with the parameter as the client called it."""
        return error

    def _max_tokens(self) -> int | None:
        return self.max_tokens


class ChatRequest(GenerationRequest):
    """The body of ``/v1/chat/completions``."""

    unsupported = parameters.CHAT

    messages: Annotated[Any, BeforeValidator(_to_messages)]
    max_completion_tokens: int | None = None

    def _max_tokens(self) -> int | None:
        """The newer name, or the older; the context is the bound where there is neither."""
        newer, older = self.max_completion_tokens, self.max_tokens
        if newer is not None and older is not None and newer != older:
            raise InvalidRequest(
                f"max_completion_tokens is {newer} and max_tokens, its older name, is {older}; give one",
                param="max_completion_tokens",
            )
        return older if newer is None else newer

    def in_client_terms(self, error: InvalidRequest, index: int) -> InvalidRequest:
        if error.param != "max_tokens" or self.max_completion_tokens is None:
            return error
        message = str(error).replace("max_tokens", "max_completion_tokens")
        return InvalidRequest(message, param="max_completion_tokens", code=error.code)


class CompletionRequest(GenerationRequest):
    """The body of ``/v1/completions``."""

    unsupported = parameters.COMPLETION

    prompt: Annotated[Prompts, PlainValidator(_to_prompts)]

    def _max_tokens(self) -> int | None:
        """OpenAI's default for this route is 16."""
        return 16 if self.max_tokens is None else self.max_tokens

    def in_client_terms(self, error: InvalidRequest, index: int) -> InvalidRequest:
        """Says which prompt of a list it is."""
        param = error.param or ""
        if not self.prompt.is_list or not param.startswith("prompt"):
            return error
        place = f"prompt[{index}]"
        message = str(error)
        message = place + (message.removeprefix("prompt") if message.startswith("prompt") else f": {message}")
        return InvalidRequest(message, param=place + param.removeprefix("prompt"), code=error.code)


def _invalid(error: ValidationError) -> InvalidRequest:
    """The first problem of a body, in the client's notation."""
    item = error.errors(include_url=False, include_context=False)[0]
    param = _path(item["loc"])
    if item["type"] == "missing":
        return InvalidRequest(f"{param} is required", param=param, code="missing_parameter")
    value = item["input"]
    hint = ""
    if item["type"].startswith("int") and isinstance(value, float) and abs(value) >= _INTEGER_LIMIT:
        hint = "; integers have at most 64 bits"
    problem = item["msg"].removeprefix("Input ")
    return InvalidRequest(f"{param} {problem}, got {reprlib.repr(value)}{hint}", param=param)


def _path(location: Sequence[int | str]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _json_type(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return f"the number {value}"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"
