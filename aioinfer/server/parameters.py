"""What OpenAI's API (or a popular extension of it) has and we do not have yet.

One table per object, from a parameter to the values that ask for nothing and are therefore accepted.  Any
other value is refused by name, never ignored in silence.  Supporting a parameter means moving it from here to
a field in `schemas`.
"""

from __future__ import annotations

import difflib
import reprlib
from typing import TYPE_CHECKING, Any

import orjson

from aioinfer.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Table = dict[str, tuple[Any, ...]]

_COMMON: Table = {
    "n": (None, 1),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "min_tokens": (None, 0),
    "bad_words": (None, []),
    "include_stop_str_in_output": (None, False),
    "return_token_ids": (None, False),
    "response_format": (None, {"type": "text"}),
}

COMPLETION: Table = _COMMON | {
    "best_of": (None, 1),
    "echo": (None, False),
    "logprobs": (None, False),
    "suffix": (None, ""),
}

CHAT: Table = _COMMON | {
    "audio": (None,),
    "function_call": (None, "none", "auto"),
    "functions": (None, []),
    "logprobs": (None, False),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "parallel_tool_calls": (None, False, True),  # says something only beside tools
    "prediction": (None,),
    "prompt_cache_options": (None,),
    "reasoning_effort": (None, "none"),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "top_logprobs": (None, 0),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
    "add_generation_prompt": (None, True),
    "continue_final_message": (None, False),
    "chat_template_kwargs": (None, {}),
}

STREAM_OPTIONS: Table = {"include_obfuscation": (None, False)}

# The nulls are what a client sends that returns the message it got.
MESSAGE: Table = {
    "annotations": (None, []),
    "audio": (None,),
    "function_call": (None,),
    "refusal": (None,),
    "reasoning_content": (None,),
    "tool_call_id": (None,),
    "tool_calls": (None, []),
}


def supported(
    fields: Mapping[str, Any], known: Collection[str], unsupported: Table, *, path: str = ""
) -> dict[str, Any]:
    """`fields` without those that ask for nothing.

    Args:
        known: names that are supported.
        unsupported: one of the tables above.
        path: where the fields stand in the request, as in ``messages[0].``.

    Raises:
        InvalidRequest: a name is unknown, or asks for what is not supported.
    """
    kept = {}
    for name, value in fields.items():
        if name in known:
            kept[name] = value
        elif name not in unsupported:
            raise _unknown(name, [*known, *unsupported], path)
        elif not any(_is_same(value, noop) for noop in unsupported[name]):
            accepted = " or ".join(orjson.dumps(noop).decode() for noop in unsupported[name])
            raise InvalidRequest(
                f"{path}{name} is not supported; only {accepted} is accepted, got {reprlib.repr(value)}",
                param=path + name,
                code="unsupported_parameter",
            )
    return kept


def _unknown(name: str, names: list[str], path: str) -> InvalidRequest:
    close = difflib.get_close_matches(name[:64], names)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known are: {', '.join(sorted(names))}"
    shown = path + (name if len(name) <= 64 else name[:64] + "...")
    return InvalidRequest(f"unknown parameter {shown!r}; {hint}", param=shown, code="unknown_parameter")


def _is_same(value: object, noop: object) -> bool:
    """Equality for which, unlike Python's, false is not 0: `logprobs: 0` asks for something."""
    return isinstance(value, bool) == isinstance(noop, bool) and value == noop
