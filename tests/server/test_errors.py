"""Every exception of the tree has its answer, and no other text reaches a client."""

from __future__ import annotations

import inspect

import pytest

from aioinfer import errors
from aioinfer.server.errors import Failure, failure_of

STATUS: dict[type[errors.AioinferError], int] = {
    errors.InvalidRequest: 400,
    errors.PromptTooLong: 400,
    errors.UnknownModel: 404,
    errors.ConsumerTooSlow: 408,
    errors.Overloaded: 429,
    errors.EngineClosed: 503,
    errors.EngineFailed: 503,
}
EVERY = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.AioinferError) and kind.__module__ == errors.__name__
]


def failure_of_kind(kind: type[errors.AioinferError]) -> Failure:
    options = {"retry_after_s": 0.2} if kind is errors.Overloaded else {}
    return failure_of(kind("what is wrong", **options))


@pytest.mark.parametrize("kind", EVERY)
def test_status_and_message(kind: type[errors.AioinferError]) -> None:
    failure = failure_of_kind(kind)
    assert failure.status == STATUS.get(kind, 500)
    assert ("Retry-After" in failure.headers) == (kind in (errors.Overloaded, errors.EngineClosed))
    if kind is not errors.WrongLoop:  # a programmer's mistake: logged, not shown
        assert failure.message == "what is wrong"
    assert (failure.type == "server_error") == (failure.status >= 500)


def test_retry_after_is_a_whole_number_of_seconds() -> None:
    assert failure_of(errors.Overloaded("full", retry_after_s=2.1)).headers == {"Retry-After": "3"}
    assert failure_of(errors.Overloaded("full", retry_after_s=0)).headers == {"Retry-After": "1"}


def test_a_param_and_code_are_passed_on() -> None:
    error = failure_of(errors.InvalidRequest("no", param="seed", code="odd")).error
    assert error == {"message": "no", "type": "invalid_request_error", "param": "seed", "code": "odd"}
