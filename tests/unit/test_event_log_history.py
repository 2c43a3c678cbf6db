"""The history of topics in the roll-ups of a host: all of it beside a plain sum, its bounds, and bad files."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from foqs.host.event_log import history as reading
from foqs.host.event_log.history import HistoryQuery, HistoryRead, HistoryReads
from foqs.model.errors import OverloadedError, UnavailableError
from foqs.model.event_history import History, HistoryRow, quantile_ms
from foqs.model.event_log import BOUNDS_MS, ROLLUPS
from foqs.model.item import Outcome
from foqs.model.topic_name import hidden
from tests.support.event_log import MadeLog, bucket_of
from tests.support.in_steps import merged_history

BASE_MS = 1_764_000_000_000 - 1_764_000_000_000 % 3_600_000
HOUR_MS, MINUTE_MS = 3_600_000, 60_000
TOPICS = ("mail", 'mail","topic":"pay', "pay\u00e9")
OUTCOMES = (Outcome.ACKED, Outcome.NACKED, Outcome.DEAD, Outcome.LEASE_ENDED, Outcome.RELEASED, Outcome.EXPIRED)


def query(*topics: str, group: str = "", since_ms: int = BASE_MS, hours: int = 5, step: int = 60) -> HistoryQuery:
    return HistoryQuery("ns-1", frozenset(topics), group, since_ms, since_ms + hours * HOUR_MS, step)


def read(directory: Path, wanted: HistoryQuery, **bounds: int) -> History:
    found = HistoryRead(directory / ROLLUPS, wanted, **bounds)
    for _ in found.steps():
        pass
    return found.history()


def made(directory: Path, hours: int = 5, seed: int = 0) -> MadeLog:
    """A log with events of some hours, of three topics in two namespaces, one with a group."""
    log, chance = MadeLog(directory, now_s=BASE_MS / 1000), random.Random(seed)
    while log.now_s * 1000 < BASE_MS + hours * HOUR_MS - 5 * MINUTE_MS:
        for namespace in (1, 2):
            name = hidden(chance.choice(TOPICS), chance.choice(("", "", "audit")))
            at_ms, topic = int(log.now_s * 1000), log.topic(name, namespace)
            log.enqueue(topic, [0] * chance.randrange(1, 5), at_ms)
            log.end(
                topic, chance.choice(OUTCOMES), ready_ms=at_ms, wait_ms=chance.randrange(3_000),
                processing_ms=chance.randrange(900), items_count=chance.randrange(1, 4),
            )  # fmt: skip
        log.passes(chance.choice((1, 20, 90, 400)))
    log.passes(120)
    log.passes(3)
    return log


def expected(log: MadeLog, wanted: HistoryQuery) -> dict[tuple[str, int], Counter[str]]:
    """The counts of each row by outcome, from the events that the log was given."""
    found: dict[tuple[str, int], Counter[str]] = {}

    def add(name: str, namespace: str, at_ms: int, outcome: str, count: int) -> None:
        topic, _, group = name.partition("\x1f")
        is_wanted = namespace == wanted.namespace and wanted.from_ms <= at_ms - at_ms % MINUTE_MS < wanted.to_ms
        if not is_wanted or (wanted.topics and (topic not in wanted.topics or group != wanted.group)):
            return
        step_ms = wanted.step_minutes * MINUTE_MS
        row = topic if wanted.topics else "", at_ms - (at_ms - wanted.from_ms) % step_ms
        found.setdefault(row, Counter())[outcome] += count

    for (name, minute_ms, namespace, _), count in log.enqueued.items():
        add(name, namespace, minute_ms, "enqueued", count)
    for end in log.ended:
        add(end["topic"], end["namespace"], end["ended_at_ms"], end["outcome"], 1)
    return found


@pytest.mark.parametrize(
    "wanted",
    [
        query(),
        query("mail"),
        query("mail", group="audit", step=1),
        query(*TOPICS, step=15),
        query("mail", since_ms=BASE_MS + 90 * MINUTE_MS, hours=2, step=7),
        query("absent"),
    ],
)
@pytest.mark.parametrize("is_closed", [True, False])
def test_each_event_is_in_its_row_also_of_the_file_that_grows(
    tmp_path: Path, wanted: HistoryQuery, *, is_closed: bool
) -> None:
    log = made(tmp_path)
    if is_closed:
        log.close()
    found = read(tmp_path, wanted)
    counts = {
        (row.topic, row.at_ms): Counter({
            outcome: count for outcome in ("enqueued", *[one.name.lower() for one in OUTCOMES])
            if (count := getattr(row, outcome))
        })
        for row in found.rows
    }  # fmt: skip
    assert counts == expected(log, wanted)
    assert [(row.topic, row.at_ms) for row in found.rows] == sorted(counts)
    assert (found.complete_from_ms, found.step_minutes) == (wanted.from_ms, wanted.step_minutes)


def test_the_buckets_have_each_time_once(tmp_path: Path) -> None:
    log = made(tmp_path)
    log.close()
    (row,) = read(tmp_path, query("mail", step=24 * 60)).rows
    ends = [end for end in log.ended if end["topic"] == "mail" and end["namespace"] == "ns-1"]
    seen = [end for end in ends if end["outcome"] != "expired"]
    waits = Counter(bucket_of(end["wait_ms"]) for end in seen)
    assert list(row.wait_buckets) == [waits[at] for at in range(len(BOUNDS_MS) + 1)]
    assert row.wait_ms_sum == sum(end["wait_ms"] for end in seen)
    assert row.processing_ms_sum == sum(end["processing_ms"] for end in seen)
    assert sum(row.processing_buckets) == len(seen)


def test_a_call_ends_at_its_bytes_and_says_from_when_on_it_is_complete(tmp_path: Path) -> None:
    made(tmp_path).close()
    files = list(tmp_path.glob(f"{ROLLUPS}/*/*/*.gz"))
    whole = read(tmp_path, query(step=1))
    found = read(tmp_path, query(step=1), bytes_max=sum(path.stat().st_size for path in files) // 2)
    assert BASE_MS < found.complete_from_ms < BASE_MS + 5 * HOUR_MS
    newest = [row for row in whole.rows if row.at_ms >= found.complete_from_ms]
    assert [row for row in found.rows if row.at_ms >= found.complete_from_ms] == newest
    assert newest
    assert len(found.rows) < len(whole.rows)


def test_files_that_others_wrote_are_left_out(tmp_path: Path) -> None:
    made(tmp_path).close()
    before = read(tmp_path, query())
    folder = next(tmp_path.glob(f"{ROLLUPS}/*/*"))
    (folder / "noise.jsonl.gz").write_bytes(b"no file of gzip")
    lines = [
        b'{"namespace":"ns-1"',
        b'{"v":1,"namespace":"ns-1","minute_ms":"x","topic":null,"outcome":"acked","count":1}',
        b'{"v":2,"namespace":"ns-1","minute_ms":%d,"topic":null,"outcome":"acked","count":1}' % BASE_MS,
        b'["namespace":"ns-1"]',
        b'{"v":1,"namespace":"ns-1","minute_ms":%d,"topic":"t","outcome":"at_ms","count":1}' % BASE_MS,
    ]
    (folder / "other.jsonl.gz").write_bytes(gzip.compress(b"\n".join(lines) + b"\n"))
    assert read(tmp_path, query()).rows == before.rows
    (folder / "folder.jsonl.gz").mkdir()
    found = read(tmp_path, query())
    assert found.rows == before.rows
    assert found.complete_from_ms > before.complete_from_ms, "what cannot be read is missing"


def test_no_history_is_complete_before_the_oldest_hour_that_is_left(tmp_path: Path) -> None:
    made(tmp_path).close()
    oldest_ms = BASE_MS // HOUR_MS * HOUR_MS
    wide = replace(query(), from_ms=oldest_ms - 10 * HOUR_MS)
    assert read(tmp_path, wide).complete_from_ms == oldest_ms
    assert read(tmp_path / "nothing", query()).complete_from_ms == query().to_ms


@pytest.mark.parametrize("since_ms", [BASE_MS, BASE_MS + 70 * MINUTE_MS, BASE_MS + 4 * HOUR_MS])
def test_rows_of_a_former_namespace_of_the_name_are_left_out(tmp_path: Path, since_ms: int) -> None:
    made(tmp_path).close()
    wanted = query(step=1)
    found = read(tmp_path, replace(wanted, since_ms=since_ms))
    assert found.rows == [row for row in read(tmp_path, wanted).rows if row.at_ms >= since_ms]
    assert found.rows
    assert found.complete_from_ms == wanted.from_ms
    whole = read(tmp_path, replace(query(step=24 * 60), since_ms=since_ms)).rows
    assert [row.at_ms for row in whole] == [BASE_MS], "steps begin at the time that was asked for"


def test_a_namespace_that_is_younger_than_the_wanted_time_reads_no_file(tmp_path: Path) -> None:
    made(tmp_path).close()
    wanted = replace(query(), since_ms=query().to_ms)
    reading_it = HistoryRead(tmp_path / ROLLUPS, wanted, bytes_max=0)
    assert len(list(reading_it.steps())) == 1, "only the oldest folder is looked for"
    assert (reading_it.history().rows, reading_it.history().complete_from_ms) == ([], wanted.from_ms)


# ---- on the thread of the log ----


class Clock:
    """A steady clock on which each look takes a millisecond."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.001
        return self.now_s


def test_the_thread_reads_in_slices_and_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_MS_MAX", 100)
    clock = Clock()
    first = datetime.fromtimestamp(BASE_MS / 1000, UTC)
    (tmp_path / ROLLUPS / first.strftime("date=%Y-%m-%d/hour=%H")).mkdir(parents=True)
    reads = HistoryReads(tmp_path / ROLLUPS, clock)
    wanted = HistoryQuery("ns-1", frozenset(), "", BASE_MS, BASE_MS + 700 * HOUR_MS, 1_440)
    answer = reads.ask(wanted)
    slices = 0
    while True:
        before_s = clock.now_s
        is_more = reads.work()
        slices += 1
        assert clock.now_s - before_s < reading.SLICE_MS_MAX / 1000 + 0.005
        if not is_more:
            break
    assert 3 < slices < 10, "700 empty folders take more than that"
    found = answer.result(0)
    assert BASE_MS < found.complete_from_ms < BASE_MS + 700 * HOUR_MS
    assert not reads.work()


def test_calls_wait_up_to_a_bound_and_those_that_left_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours: list[int] = []

    def no_files(root: Path, hour: int) -> list[Path]:
        hours.append(hour)
        return []

    monkeypatch.setattr(reading, "_files_of", no_files)
    reads = HistoryReads(tmp_path / ROLLUPS, Clock())
    answers = [reads.ask(query()) for _ in range(reading.WAITING_MAX)]
    with pytest.raises(OverloadedError, match="4 calls for history wait"):
        reads.ask(query())
    answers[1].cancel()
    answers[2].cancel()
    while reads.work():
        pass
    assert [answer.cancelled() or answer.done() for answer in answers] == [True] * 4
    assert answers[0].result(0).rows == []
    assert answers[1].cancelled()
    assert len(hours) == 2 * 6, "two calls of five hours and the next one"


def test_the_end_of_the_log_refuses_the_calls_that_wait(tmp_path: Path) -> None:
    reads = HistoryReads(tmp_path / ROLLUPS, Clock())
    answers = [reads.ask(query(hours=700)) for _ in range(2)]
    reads.work()
    reads.close()
    for answer in answers:
        with pytest.raises(UnavailableError, match="ends: ask again"):
            answer.result(0)
    with pytest.raises(UnavailableError, match="has ended"):
        reads.ask(query())


def test_a_defect_of_one_call_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = HistoryReads(tmp_path / ROLLUPS, Clock())
    bad, good = reads.ask(query()), reads.ask(query("mail"))

    def broken(root: Path, hour: int) -> Any:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(reading, "_files_of", broken)
        with pytest.raises(ZeroDivisionError):
            reads.work()
    assert "history was not read" in str(bad.exception(0))
    while reads.work():
        pass
    assert good.result(0).rows == []


# ---- of several hosts ----


def test_the_histories_of_hosts_add_up() -> None:
    rest = [0] * (len(BOUNDS_MS) - 1)
    one = [HistoryRow("a", 60_000, 1, 2, wait_buckets=[1, 2, *rest], wait_ms_sum=5), HistoryRow("a", 120_000, 1)]
    other = [HistoryRow("a", 60_000, 10, 20, dead=3, wait_buckets=[5, 5, *rest]), HistoryRow("b", 60_000, 7)]
    found = merged_history([History(one, 1, 60_000, missing=["x"]), History(other, 1, 120_000, missing=["x", "y"])])
    assert [(row.topic, row.at_ms, row.enqueued, row.acked, row.dead) for row in found.rows] == [
        ("a", 60_000, 11, 22, 3),
        ("a", 120_000, 1, 0, 0),
        ("b", 60_000, 7, 0, 0),
    ]
    assert (found.rows[0].wait_buckets, found.rows[0].wait_ms_sum) == ([6, 7, *rest], 5)
    assert (found.complete_from_ms, found.missing) == (120_000, ["x", "y"])


@pytest.mark.parametrize("bounds_ms", [BOUNDS_MS, (1, 2)])
def test_buckets_of_a_host_of_another_version_do_not_count(bounds_ms: Sequence[int]) -> None:
    own = [HistoryRow("a", 60_000, 1, wait_buckets=[1] * (len(BOUNDS_MS) + 1))]
    alien = [HistoryRow("a", 60_000, 1, wait_buckets=[5, 5, 5])]
    found = merged_history([History(own, 1, 0), History(alien, 1, 0, bounds_ms)])
    assert (found.rows[0].enqueued, found.rows[0].wait_buckets) == (2, [1] * (len(BOUNDS_MS) + 1))


def test_a_quantile_is_the_bound_of_its_bucket() -> None:
    bounds = (1, 10, 100)
    assert quantile_ms([], bounds, 0.5) is None
    assert quantile_ms([0, 0, 0, 0], bounds, 0.5) is None
    assert quantile_ms([98, 0, 1, 1], bounds, 0.5) == 1
    assert quantile_ms([98, 0, 1, 1], bounds, 0.99) == 100
    assert quantile_ms([98, 0, 1, 1], bounds, 0.999) == -1
