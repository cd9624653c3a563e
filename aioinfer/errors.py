"""Every exception a user of aioinfer can meet.

::

    AioinferError
    ├── ConfigError            an option is wrong
    ├── ModelError             the model cannot be used
    │   ├── ModelNotFound      no such model, or a directory without one
    │   ├── DownloadFailed     it is not here and could not be fetched
    │   ├── CorruptWeights     a weights file is damaged or cut short
    │   └── UnsupportedModel   an architecture, format or tokenizer we do not know
    ├── InvalidRequest         the client's: refuse it
    │   ├── PromptTooLong
    │   └── UnknownModel
    ├── Overloaded             the client's: come back in `retry_after_s`
    ├── RequestFailed          the request's: it ends alone
    │   └── ConsumerTooSlow    nobody read its output
    └── EngineError            the engine's: everything in flight fails
        ├── EngineClosed       not open, or shutting down
        ├── EngineFailed       the device or the step loop broke; the cause is `__cause__`
        ├── BackendUnavailable the device asked for is not usable here
        └── WrongLoop          called from another event loop than the engine's

The kind of an error decides the reaction to it: the client's is refused, the request's ends that request,
the engine's fails everything in flight and turns the engine unhealthy.
"""

from __future__ import annotations


class AioinferError(Exception):
    """Base of every exception raised on purpose by aioinfer."""


class ConfigError(AioinferError):
    """An option has a value that cannot be used; the message says which values can."""


class ModelError(AioinferError):
    """The model cannot be used."""


class ModelNotFound(ModelError):
    """No model has this name or path, or the directory holds none."""


class DownloadFailed(ModelError):
    """The model is not in the cache and could not be fetched."""


class CorruptWeights(ModelError):
    """A weights file is damaged, truncated or does not fit its configuration."""


class UnsupportedModel(ModelError):
    """The model's architecture, weight format or tokenizer is not supported."""


class InvalidRequest(AioinferError):
    """The request itself is wrong.

    Args:
        message: what is wrong and what would have been accepted.
        param: the field at fault, in the notation of the caller (``messages[0].content``).
        code: a stable machine-readable word.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class PromptTooLong(InvalidRequest):
    """The prompt, or the prompt and `max_tokens` together, do not fit the model's context."""

    def __init__(self, message: str, *, param: str | None = "prompt") -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class UnknownModel(InvalidRequest):
    """The request names a model that this server does not serve."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="model", code="model_not_found")


class Overloaded(AioinferError):
    """Too much is waiting already.

    Args:
        message: which bound was reached.
        retry_after_s: when it is worth trying again, in seconds.
    """

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestFailed(AioinferError):
    """This request cannot go on; the others are not touched."""


class ConsumerTooSlow(RequestFailed):
    """Nobody read the request's output for longer than the configured bound."""


class EngineError(AioinferError):
    """The engine cannot serve."""


class EngineClosed(EngineError):
    """The engine is not open: not yet entered, shutting down, or closed."""


class EngineFailed(EngineError):
    """The device or the step loop failed; `__cause__` has the original error."""


class BackendUnavailable(EngineError):
    """The device asked for cannot be used on this machine; the message says what is missing."""


class WrongLoop(EngineError):
    """The engine belongs to the event loop that entered it and was called from another."""
