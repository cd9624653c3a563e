"""Chat messages to prompt text, by the model's template.

`validate_messages` is cheap and may be called on the loop; `ChatTemplate.render` belongs in the text
pool, since a template is foreign code that may take up to its limit of CPU time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from aioinfer.errors import InvalidRequest, UnsupportedModel
from aioinfer.text.sandbox import BoundedEnvironment, LimitExceeded, TemplateRefusal
from aioinfer.text.tokenizer import check_text

# A million tokens of English; no context we know of is longer.
MAX_RENDERED_CHARS = 4 * 1024 * 1024
# Templates take well under a millisecond a message.  CPU time of the thread, so that a busy machine
# refuses nobody.
MAX_RENDER_CPU_S = 2.0


class ChatTemplate:
    """A compiled chat template; immutable, for any thread.

    Args:
        source: the Jinja template.
        special_tokens: variables such as `bos_token`.
        max_chars: longest text, and largest structure, that the template may build.
        max_cpu_s: CPU time that a rendering may take, in seconds.

    Raises:
        UnsupportedModel: the template does not compile; the message says where.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str],
        max_chars: int = MAX_RENDERED_CHARS,
        max_cpu_s: float = MAX_RENDER_CPU_S,
    ) -> None:
        self._special_tokens = dict(special_tokens)
        self._environment = BoundedEnvironment(max_chars=max_chars, max_cpu_s=max_cpu_s)
        try:
            self._template = self._environment.compile_bounded(source)
        except jinja2.TemplateSyntaxError as error:
            raise UnsupportedModel(
                f"the chat template does not compile: line {error.lineno}: {error.message}"
            ) from error
        except (RecursionError, ValueError) as error:  # nested too deeply; not encodable
            raise UnsupportedModel(f"the chat template does not compile: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt for these messages, special tokens written out.

        A content that is a list of text parts reaches the template as one string.

        Args:
            messages: as `validate_messages` wants them.
            add_generation_prompt: end with what begins the assistant's next message.
            tools: tool descriptions, for templates that know tools.
            variables: further variables of the template.

        Raises:
            InvalidRequest: the messages are wrong, or the template does not take them (its own words are
                in the message), or rendering reached a limit (code `template_limit`).
        """
        validate_messages(messages)
        values = {
            **self._special_tokens,
            "documents": None,
            **variables,
            "messages": [_with_plain_content(message) for message in messages],
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = self._environment.render_bounded(self._template, values)
        except TemplateRefusal as error:
            raise InvalidRequest(str(error), param="messages") from error
        except LimitExceeded as error:
            raise InvalidRequest(
                f"the chat template was stopped: it {error}", param="messages", code="template_limit"
            ) from error
        except Exception as error:  # foreign code: what it raises depends on what the client sent
            raise InvalidRequest(
                f"the chat template cannot render these messages: {type(error).__name__}: {error}",
                param="messages",
            ) from error
        check_text(text, param="messages")
        return text


def validate_messages(messages: object) -> None:
    """Refuse what is not a conversation.

    A message is a mapping with a non-empty string `role` and a `content`: a string, a list of
    `{"type": "text", "text": ...}` parts, or nothing if it has `tool_calls`.

    Raises:
        InvalidRequest: `param` names the place, as in `messages[1].content`.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise InvalidRequest("messages must be a list of at least one message", param="messages")
    for index, message in enumerate(messages):
        param = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise InvalidRequest(
                f"{param} must be an object with role and content, got {type(message).__name__}", param=param
            )
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise InvalidRequest(
                f"{param}.role must be a non-empty string (system, user, assistant, tool, ...), got {role!r}",
                param=f"{param}.role",
            )
        check_text(role, param=f"{param}.role")
        _validate_content(message, f"{param}.content")


def _validate_content(message: Mapping[str, Any], param: str) -> None:
    content = message.get("content")
    if content is None:
        if not message.get("tool_calls"):
            raise InvalidRequest(
                f"{param} must be a string or a list of text parts; only a message with tool_calls has none",
                param=param,
            )
    elif isinstance(content, str):
        check_text(content, param=param)
    elif isinstance(content, Sequence) and not isinstance(content, bytes):
        for index, part in enumerate(content):
            _validate_part(part, f"{param}[{index}]")
    else:
        raise InvalidRequest(
            f"{param} must be a string or a list of text parts, got {type(content).__name__}", param=param
        )


def _validate_part(part: object, param: str) -> None:
    if not isinstance(part, Mapping) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise InvalidRequest(
            f'{param} must be {{"type": "text", "text": ...}}; a part of type {kind!r} is not supported',
            param=param,
        )
    check_text(part.get("text"), param=f"{param}.text")


def _with_plain_content(message: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with text parts joined, and without null values: templates ask whether a key is there."""
    plain = {key: value for key, value in message.items() if value is not None}
    content = plain.get("content")
    if content is not None and not isinstance(content, str):
        plain["content"] = "".join(part["text"] for part in content)
    return plain
