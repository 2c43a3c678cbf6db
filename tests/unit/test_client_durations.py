"""Durations and times in both forms: whole milliseconds, and timedelta or datetime."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foqs
from foqs.client.durations import duration_ms, duration_or
from foqs.model import limits
from foqs.model.errors import InvalidArgumentError
from foqs.model.given_times import time_ms, twin_of


def arguments() -> Iterator[tuple[str, str, dict[str, inspect.Parameter]]]:
    """Every public argument of the package that is a number of milliseconds, with those beside it."""
    for name in foqs.__all__:
        public = getattr(foqs, name)
        if not inspect.isclass(public):
            continue
        own = [member for _, member in inspect.getmembers(public, inspect.isfunction) if member.__name__[0] != "_"]
        for function in [public.__init__, *own]:
            parameters = dict(inspect.signature(function).parameters)
            for argument in parameters:
                if "_ms" in argument and argument != "clock_ms":
                    yield f"{name}.{function.__name__}", argument, parameters


def test_every_duration_may_be_given_as_a_timedelta_and_a_time_as_a_datetime() -> None:
    found = [
        (where, argument, parameters)
        for where, argument, parameters in arguments()
        if "int | None" in str(parameters[argument].annotation)
        and not where.endswith("Error.__init__")
        # What a host tells stays as it comes.
        and not where.startswith(("StoredItem.", "ShardMap."))
    ]
    assert len(found) > 50
    for where, argument, parameters in found:
        twin = parameters.get(twin_of(argument))
        assert twin is not None, f"{where} has {argument} alone"
        assert str(twin.annotation) in ("timedelta | None", "datetime | None"), where
        assert twin.kind is inspect.Parameter.KEYWORD_ONLY, where


@pytest.mark.parametrize(
    ("duration", "milliseconds"),
    [
        (timedelta(minutes=5), 300_000),
        (timedelta(), 0),
        (timedelta(microseconds=1), 1),
        (timedelta(seconds=1, microseconds=1), 1_001),
        (timedelta(days=90), limits.DELAY_MS_MAX),
        (timedelta(seconds=-1), -1_000),
    ],
)
def test_a_timedelta_is_rounded_up_to_milliseconds(duration: timedelta, milliseconds: int) -> None:
    assert duration_ms("delay_ms", None, duration) == milliseconds
    assert duration_or("delay_ms", None, duration, 7) == milliseconds


def test_milliseconds_stay_as_they_are_and_a_default_holds_where_nothing_is_given() -> None:
    assert duration_ms("delay_ms", 5, None) == 5
    assert duration_ms("delay_ms", None, None) is None
    assert duration_or("delay_ms", None, None, 7) == 7
    assert duration_or("delay_ms", 0, None, 7) == 0
    assert time_ms("deliver_after_ms", None, None) is None


def test_a_time_is_the_same_in_every_time_zone() -> None:
    noon = datetime(2026, 3, 29, 12, 0, 0, 1, tzinfo=UTC)
    expected_ms = 1_774_785_600_001
    assert time_ms("deliver_after_ms", None, noon) == expected_ms
    assert time_ms("deliver_after_ms", None, noon.astimezone(timezone(timedelta(hours=5, minutes=45)))) == expected_ms


ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(timezones=ZONES))
def test_a_time_is_its_distance_from_the_epoch_in_milliseconds_that_have_begun(given_time: datetime) -> None:
    whole, rest = divmod(given_time - datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1))
    assert time_ms("deliver_after_ms", None, given_time) == whole + bool(rest)


def test_a_time_without_a_zone_is_refused_with_a_way_out() -> None:
    with pytest.raises(InvalidArgumentError, match=r"deliver_after 2026-03-29T12:00:00 has no time zone.*now\(UTC\)"):
        foqs.NewItem("t", b"", deliver_after=datetime(2026, 3, 29, 12))


BOTH: dict[str, Callable[[], object]] = {
    "deliver_after": lambda: foqs.NewItem("t", b"", deliver_after_ms=1, deliver_after=datetime.now(UTC)),
    "delay": lambda: foqs.NewItem("t", b"", delay_ms=1, delay=timedelta(1)),
    "ttl": lambda: foqs.NewItem("t", b"", ttl_ms=1, ttl=timedelta(1)),
    "lease": lambda: foqs.NewItem("t", b"", lease_ms=1, lease=timedelta(1)),
    "deadline": lambda: foqs.RetryPolicy(deadline_ms=1, deadline=timedelta(1)),
    "backoff_max": lambda: foqs.RetryPolicy(backoff_ms_max=1, backoff_max=timedelta(1)),
    "backoff": lambda: foqs.TopicPolicyChange("t", backoff_ms=1, backoff=timedelta(1)),
    "delay_max": lambda: foqs.NackBackoff(delay_ms_max=1, delay_max=timedelta(1)),
    "died_before": lambda: foqs.ItemFilter(died_before_ms=1, died_before=datetime.now(UTC)),
    "timeout": lambda: foqs.Client(timeout_ms=1, timeout=timedelta(1)),
    "connect_timeout": lambda: foqs.AdminClient(connect_timeout_ms=1, connect_timeout=timedelta(1)),
    "wait": lambda: foqs.Client().consume("ns", "t", wait_ms=1, wait=timedelta(1)),
    "drain": lambda: foqs.Worker(foqs.Client(), "ns", "t", print, drain_ms=1, drain=timedelta(1)),
}


@pytest.mark.parametrize("name", BOTH)
def test_an_argument_and_its_twin_exclude_each_other(name: str) -> None:
    twin = name.replace("_max", "") + "_ms" + "_max" * name.endswith("_max")
    with pytest.raises(InvalidArgumentError, match=f"{name} and {twin} are both given"):
        BOTH[name]()


@pytest.mark.parametrize("wrong", [5, 1.5, "1 s"])
def test_what_is_no_timedelta_is_told_so(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"is not a timedelta: use timedelta.*or delay_ms for milliseconds"):
        foqs.Nack("a.1", delay=wrong)
    with pytest.raises(InvalidArgumentError, match="is not a datetime"):
        foqs.ItemFilter(enqueued_after=wrong)
    with pytest.raises(InvalidArgumentError, match="is not a datetime"):
        foqs.NewItem("t", b"", deliver_after=wrong)


def test_both_forms_make_the_same_filters() -> None:
    names = ("enqueued_after", "enqueued_before", "died_after", "died_before", "deliver_after")
    times = {name: datetime(2026, 3, 29, 12, n, tzinfo=UTC) for n, name in enumerate(names)}
    made = foqs.ItemFilter(topics=("t",), **times)
    assert made == foqs.ItemFilter(
        topics=("t",), **{f"{name}_ms": 1_774_785_600_000 + n * 60_000 for n, name in enumerate(names)}
    )
    assert replace(made, topics=()) == foqs.ItemFilter(**times)


def test_both_forms_make_the_same_values() -> None:
    minute = timedelta(minutes=1)
    assert foqs.NewItem("t", b"", delay=minute, ttl=minute, lease=minute) == foqs.NewItem(
        "t", b"", delay_ms=60_000, ttl_ms=60_000, lease_ms=60_000
    )
    assert foqs.Nack("a.1", delay=minute) == foqs.Nack("a.1", 60_000)
    assert foqs.Retry(delay=minute).delay_ms == foqs.Retry(60_000).delay_ms == 60_000
    assert foqs.Release(delay=minute).delay_ms == foqs.Release(60_000).delay_ms == 60_000
    assert foqs.RetryPolicy(deadline=minute, backoff=minute, backoff_max=minute) == foqs.RetryPolicy(
        deadline_ms=60_000, backoff_ms=60_000, backoff_ms_max=60_000
    )
    assert foqs.TopicPolicyChange("t", backoff=minute, backoff_max=minute) == foqs.TopicPolicyChange(
        "t", backoff_ms=60_000, backoff_ms_max=60_000
    )
    assert foqs.NackBackoff(delay=minute, delay_max=minute) == foqs.NackBackoff(delay_ms=60_000, delay_ms_max=60_000)
    options = foqs.Client(timeout=minute, connect_timeout=minute).options
    assert (options.timeout_ms, options.connect_timeout_ms) == (60_000, 60_000)


def test_a_lease_must_be_named_to_be_extended() -> None:
    with pytest.raises(InvalidArgumentError, match="give lease or lease_ms"):
        foqs.Client().extend("ns", "a.1")
