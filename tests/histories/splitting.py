"""Splits a history into parts that can be checked one by one: every item is in one part with all that concerns it.

The part of an item hangs on its id, which its enqueue, its deliveries and its ends all know. Only an enqueue that was
not answered with an id does not: those few uids are remembered, and their ids, once they are seen, follow them. Where
dedup ids are checked, all that was enqueued with the same one goes by that: again only those that came twice are
remembered.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from foqs.model.calls import ItemState
from tests.histories.dedup_checks import NO_WINDOW, DedupWindow, puts_with_ids
from tests.histories.history import Call, Outcome, Verb, read_calls
from tests.histories.lives import Stored

_REPEAT_BUCKETS = 1 << 24


@dataclass(frozen=True, slots=True)
class Part:
    path: Path
    stored: Sequence[Stored]

    def calls(self) -> Iterator[Call]:
        return read_calls(self.path)


def split(
    paths: Sequence[Path],
    stored: Sequence[Stored],
    count: int,
    directory: Path,
    see: Callable[[Call], None],
    dedup: DedupWindow = NO_WINDOW,
) -> list[Part]:
    """The parts, in files of the directory. `see` is shown every whole call once.

    A call is in every part that one of its items is in, with only those; a dequeue without items is in all of them.
    Raises ValueError as read_histories does.
    """
    homes = _Homes(count, paths, stored, dedup)
    part_paths = [directory / f"part-{number}" for number in range(count)]
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("w", encoding="utf-8")) for path in part_paths]
        for path in paths:
            for call in read_calls(path):
                see(call)
                _distribute(call, homes, files)
    rows: list[list[Stored]] = [[] for _ in range(count)]
    for row in stored:
        rows[homes.of_id(row.id)].append(row)
    return [Part(path, part_rows) for path, part_rows in zip(part_paths, rows, strict=True)]


def read_stored(path: Path) -> list[Stored]:
    """Rows that `write_stored` wrote."""
    with path.open(encoding="utf-8") as file:
        return [Stored(item_id, uid, ItemState[state]) for item_id, uid, state in map(json.loads, file)]


def write_stored(path: Path, rows: Iterable[Stored]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps([row.id, row.uid, row.state.name]) + "\n" for row in rows)


class _Homes:
    """Which part each item is in."""

    def __init__(
        self, count: int, paths: Sequence[Path], stored: Sequence[Stored], dedup: DedupWindow = NO_WINDOW
    ) -> None:
        self._count = count
        self._by_id: dict[str, int] = {}
        """Of items whose enqueue was not answered with an id, or whose dedup id was enqueued more than once."""
        self._by_uid = {
            uid: self.of_text(uid) for path in paths for call in read_calls(path) for uid in _without_id(call)
        }
        self._see_repeats(paths, dedup)
        for path in paths:
            for call in read_calls(path):
                for taken in call.taken:
                    self._follow(taken.receipt.partition(":")[0], taken.uid)
        for row in stored:
            self._follow(row.id, row.uid)

    def _see_repeats(self, paths: Sequence[Path], dedup: DedupWindow) -> None:
        if not dedup.namespaces:
            return
        # By a hash of some bits: a few ids that were enqueued once are taken for repeated ones, which is no harm.
        counts = bytearray(_REPEAT_BUCKETS)
        for path in paths:
            for call in read_calls(path):
                for _, put, _, scope in puts_with_ids(call, dedup):
                    bucket = _bucket(scope, put.dedup_id)
                    counts[bucket] = min(2, counts[bucket] + 1)
        for path in paths:
            for call in read_calls(path):
                for position, put, _, scope in puts_with_ids(call, dedup):
                    if counts[_bucket(scope, put.dedup_id)] == 2:
                        self._by_uid[put.uid] = self.of_text(f"{scope} {put.dedup_id}")
                        if call.outcome_at(position) is Outcome.OK:
                            self._follow(call.ids[position], put.uid)

    def _follow(self, item_id: str, uid: str) -> None:
        if uid in self._by_uid:
            self._by_id[item_id] = self._by_uid[uid]

    def of_put(self, uid: str, item_id: str) -> int:
        """`item_id` is what its enqueue was answered with."""
        home = self._by_uid.get(uid)
        return self.of_id(item_id) if home is None else home

    def of_id(self, item_id: str) -> int:
        home = self._by_id.get(item_id)
        return self.of_text(item_id) if home is None else home

    def of_text(self, text: str) -> int:
        return zlib.crc32(text.encode()) % self._count


def _bucket(scope: str, dedup_id: str) -> int:
    return zlib.crc32(f"{scope} {dedup_id}".encode()) % _REPEAT_BUCKETS


def _without_id(call: Call) -> Iterator[str]:
    if call.verb is Verb.ENQUEUE:
        for position, put in enumerate(call.asked):
            if call.outcome_at(position) is not Outcome.OK or position in call.duplicates:
                yield put.uid


def _distribute(call: Call, homes: _Homes, files: Sequence[IO[str]]) -> None:
    if call.verb is Verb.DEQUEUE:
        if not call.taken:
            for file in files:
                file.writelines(call.lines())
            return
        items: Sequence[Any] = call.taken
        parts = [homes.of_id(taken.receipt.partition(":")[0]) for taken in call.taken]
    elif call.verb is Verb.ENQUEUE:
        items = call.asked
        parts = [
            homes.of_put(put.uid, call.ids[position] if call.outcome_at(position) is Outcome.OK else "")
            for position, put in enumerate(items)
        ]
    else:
        items = call.asked
        parts = [homes.of_id(settled.receipt.partition(":")[0]) for settled in items]
    for part in sorted(set(parts)):
        chosen = [position for position, home in enumerate(parts) if home == part]
        files[part].writelines(_restricted(call, chosen).lines())


def _restricted(call: Call, chosen: Sequence[int]) -> Call:
    """The call as if it had been about these positions alone."""
    if call.verb is Verb.DEQUEUE:
        return replace(call, taken=[call.taken[position] for position in chosen])
    return replace(
        call,
        asked=[call.asked[position] for position in chosen],
        ids=[call.ids[position] for position in chosen] if call.ids else (),
        duplicates=[at for at, position in enumerate(chosen) if position in call.duplicates],
        others={at: call.others[position] for at, position in enumerate(chosen) if position in call.others},
    )
