"""What is true of the event log of any host, and of what clients were told of the same items."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from foqs.model import ids
from foqs.model.event_log import LIFE_COLUMNS, LIVES, ROLLUPS, SERIES_LOST
from foqs.model.item import Outcome as EndOf
from foqs.model.topic_name import hidden
from tests.histories.history import Call, Outcome, Settled, Verb

if TYPE_CHECKING:
    from tests.sim.events import EventBook, SimEventLog

_SHOWN_MAX = 5
_LIVES_BY_NAME = {outcome.name.lower(): outcome for outcome in EndOf}
_FAILED = (EndOf.NACKED, EndOf.DEAD, EndOf.AT_MOST_ONCE)


def log_problems(log: SimEventLog, book: EventBook) -> Iterator[str]:
    """Whether the files of one host say what it was given."""
    yield from _rollup_problems(log)
    yield from _life_problems(log, book)


def _rollup_problems(log: SimEventLog) -> Iterator[str]:
    """A series that has no row of its own is in one of others, so outcomes are compared besides."""
    by_series: Counter[Any] = Counter()
    by_outcome: Counter[str] = Counter()
    for row in log.lines(ROLLUPS):
        by_outcome[row["outcome"]] += row["count"]
        if row["topic"] is not None:
            by_series[
                int(row["namespace"]), hidden(row["topic"], row.get("group")), row["priority"], row["outcome"]
            ] += row["count"]
        for name in ("wait", "processing"):
            if sum(row[name]) > row["count"]:
                yield f"E3: a roll-up has more times of {name} than items: {row}"
    expected: Counter[str] = Counter()
    for (_, _, _, outcome), count in log.taken.items():
        expected[outcome] += count
    files = log.rollups_files
    given_count = expected.total() + log.lost_items_count
    expected += Counter({SERIES_LOST: log.lost_items_count + files.lost_items_count})
    yield from _compared("E3: roll-ups of series", log.taken, by_series, is_exact=False)
    is_exact = log.is_complete and not files.lost_count and not files.waiting_count
    yield from _compared("E3: roll-ups of outcomes", expected, by_outcome, is_exact=is_exact)
    waiting_count = sum([line.items_count for line in files._waiting._lines])
    untold_count = log.lost_items_count + files.lost_items_count - log._lost_logged_count
    if log.is_complete and by_outcome.total() + waiting_count + untold_count != given_count:
        yield (
            f"E3: {by_outcome.total()} items are in roll-ups, lost ones among them, {waiting_count} in rows that the "
            f"disk has refused and {untold_count} lost since, of {given_count}"
        )


def _life_problems(log: SimEventLog, book: EventBook) -> Iterator[str]:
    expected = Counter(
        {
            (key, outcome): count
            for (key, outcome), count in log.taken_ends.items()
            if outcome.ends_life and book.is_sampled(key[1])
        }
    )
    found: Counter[Any] = Counter()
    for line in log.lines(LIVES):
        if any(len(line[name]) not in (1, line["count"]) for name in LIFE_COLUMNS):
            yield f"E4: a line of lives has columns of different lengths: {line}"
            return
        for life in _lives_of(line):
            key = (line["shard"], life["key"])
            outcome = _LIVES_BY_NAME[line["outcome"]]
            found[key, outcome] += 1
            if outcome is EndOf.ACKED:
                book.attempts[key] = life["attempts"]
            born = book.born[key]
            told = (
                int(line["namespace"]),
                hidden(line["topic"], line.get("group")),
                life["priority"],
                life["enqueued_at_ms"],
            )
            if told != born[1:]:
                yield f"E4: a life of {born} is told as {told}"
    files = log.lives_files
    is_exact = log.is_complete and not files.lost_count and not files.waiting_count
    yield from _compared("E4: lives", expected, found, is_exact=is_exact)
    if log.is_complete and files.written_count + files.lost_count + files.waiting_count != expected.total():
        yield (
            f"E4: {files.written_count} lives are written, {files.lost_count} lost, and {files.waiting_count} were "
            f"refused by the disk, of {expected.total()}"
        )
    if found.total() < files.written_count:
        yield f"E4: {files.written_count} lives are said to be written, and {found.total()} are there"


def _lives_of(line: dict[str, Any]) -> Iterator[dict[str, int]]:
    for position in range(line["count"]):
        yield {name: line[name][position if len(line[name]) > 1 else 0] for name in LIFE_COLUMNS}


def _compared(what: str, expected: Counter[Any], found: Counter[Any], *, is_exact: bool) -> Iterator[str]:
    extra, missing = found - expected, expected - found
    if extra:
        yield f"{what} are on the disk and were not given: {list(extra.items())[:_SHOWN_MAX]}"
    if missing and is_exact:
        yield f"{what} were given and are not on the disk: {list(missing.items())[:_SHOWN_MAX]}"


def told_problems(calls: Iterable[Call], book: EventBook) -> Iterator[str]:
    """E5: what a client was told is in what some log was given."""
    given: dict[tuple[int, int], Counter[EndOf]] = defaultdict(Counter)
    for log in book.logs:
        for (place, outcome), count in log.given_ends.items():
            given[place][outcome] += count
    nacked: Counter[tuple[int, int]] = Counter()
    for call in calls:
        for position, asked in enumerate(call.asked):
            if call.outcome_at(position) is not Outcome.OK or position in call.duplicates:
                continue
            if call.verb is Verb.ENQUEUE:
                if ids.parse(call.ids[position])[:2] not in book.known_born:
                    yield f"E5: {asked.uid} was enqueued, and no host was told so"
            elif call.verb in (Verb.ACK, Verb.NACK):
                yield from _settled_problems(call.verb, asked, given, book)
                nacked[ids.parse(asked.receipt)[:2]] += call.verb is Verb.NACK and not asked.release
    for place, count in nacked.items():
        failed_count = sum([given[place][outcome] for outcome in _FAILED])
        if failed_count < count:
            yield f"E5: {place} was nacked {count} times, and logs were given {failed_count} of that"


def _settled_problems(
    verb: Verb, settled: Settled, given: Mapping[tuple[int, int], Counter[EndOf]], book: EventBook
) -> Iterator[str]:
    shard_id, key, number = ids.parse(settled.receipt)
    if not number:
        return  # By a bare id: it may be gone already, by whoever's end.
    wanted = EndOf.ACKED if verb is Verb.ACK else EndOf.DEAD if settled.dead_letter else None
    if wanted is not None and not given[shard_id, key][wanted]:
        yield f"E5: {settled.receipt} was {wanted.name}, and no log was given that"
    attempts = book.attempts.get((shard_id, key), number)
    if verb is Verb.ACK and attempts != number:
        yield f"E5: {settled.receipt} was acked, and a log says that it had {attempts} attempts"
