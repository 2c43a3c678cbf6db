"""The reason that a worker sends for an exception."""

from __future__ import annotations

import json
from typing import Any

import pytest

import foqs
from foqs import DeadLetter, InvalidArgumentError, Release, Retry, describe_error
from foqs.client.describing import reason_of
from foqs.model.failures import REASON_BYTES_MAX
from foqs.testing import MemoryQueue


def raised(work: Any, *arguments: Any) -> BaseException:
    try:
        work(*arguments)
    except BaseException as error:
        return error
    raise AssertionError("it raised nothing")


def fail(error: BaseException) -> None:
    raise error


def in_a_library() -> None:
    json.loads("{")


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_description_has_the_type_the_first_line_and_the_place_outside_of_libraries() -> None:
    line = fail.__code__.co_firstlineno + 1
    assert describe_error(raised(fail, ValueError("bad card\nsecret details"))) == (
        f"ValueError: bad card (unit/test_describing.py:{line})"
    )
    assert describe_error(ValueError()) == "ValueError"
    line = in_a_library.__code__.co_firstlineno + 1
    shown = describe_error(raised(in_a_library))
    assert shown.startswith("JSONDecodeError: Expecting property name")
    assert shown.endswith(f"(unit/test_describing.py:{line})")


def test_a_description_keeps_its_place_however_long_or_strange_the_message_is() -> None:
    for message in ("x" * 1_000_000, "é" * 1_000, "\ud800\x1b[2J" * 300):
        shown = describe_error(raised(fail, ValueError(message)))
        assert len(shown.encode()) <= REASON_BYTES_MAX
        assert shown.startswith("ValueError: ")
        assert "test_describing.py:" in shown
        assert "\x1b" not in shown
    assert describe_error(raised(fail, UnspeakableError())).startswith("UnspeakableError (unit/")


def test_what_a_handler_says_is_the_reason_and_otherwise_the_exception_that_it_handled() -> None:
    def convert(made: BaseException) -> None:
        try:
            raise ValueError("bad card")
        except ValueError:
            raise made  # noqa: B904

    def convert_from_none() -> None:
        try:
            raise ValueError("bad card")
        except ValueError:
            raise Retry from None

    assert reason_of(raised(convert, Retry(5, reason="busy")), describe_error) == "busy"
    assert reason_of(raised(convert, DeadLetter("poison")), describe_error) == "poison"
    for made in (Retry(), DeadLetter()):
        assert (reason_of(raised(convert, made), describe_error) or "").startswith("ValueError: bad card")
    assert reason_of(raised(convert, Release()), describe_error) is None
    assert reason_of(raised(convert, Release(reason="stopping")), describe_error) == "stopping"
    assert reason_of(raised(convert_from_none), describe_error) is None
    circular = Retry()
    circular.__cause__ = circular
    assert reason_of(circular, describe_error) is None
    assert reason_of(DeadLetter(404), describe_error) == "404"  # type: ignore[arg-type]
    assert reason_of(DeadLetter(UnspeakableError()), describe_error) is None  # type: ignore[arg-type]


def test_a_description_of_ones_own_replaces_the_message_and_none_sends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = ValueError("token=secret")
    assert reason_of(error, lambda failure: type(failure).__name__) == "ValueError"
    assert reason_of(error, lambda failure: None) is None
    assert reason_of(error, None) is None
    assert not caplog.records
    assert reason_of(error, lambda failure: 1 // 0 and "") is None
    (record,) = caplog.records
    assert "secret" not in record.getMessage()
    assert "ZeroDivisionError" in record.getMessage()


def handle_one(queue: MemoryQueue, error: BaseException, **how: Any) -> foqs.StoredItem:
    client = queue.client()
    item_id = client.enqueue("jobs", "t", b"x")

    def handle(item: foqs.LeasedItem) -> None:
        worker.stop()
        raise error

    worker = foqs.Worker(client, "jobs", "t", handle, concurrency=1, **how)
    worker.run()
    return queue.admin().get_item("jobs", item_id)


def test_a_worker_sends_the_reason_of_a_failed_handler() -> None:
    with MemoryQueue(["jobs"]) as queue:
        (failure,) = handle_one(queue, ValueError("bad card")).errors
        assert failure.attempt == 1
        assert failure.reason.startswith("ValueError: bad card (unit/test_describing.py:")
    with MemoryQueue(["jobs"]) as queue:
        dead = handle_one(queue, DeadLetter("no such customer"))
        assert dead.death_reason == "dead-lettered by its consumer: no such customer"
        assert [failure.reason for failure in dead.errors] == ["no such customer"]
    with MemoryQueue(["jobs"]) as queue:
        assert handle_one(queue, ValueError("secret"), describe=None).errors == []
    with MemoryQueue(["jobs"]) as queue, pytest.raises(InvalidArgumentError, match="describe 'x'"):
        handle_one(queue, ValueError("secret"), describe="x")
