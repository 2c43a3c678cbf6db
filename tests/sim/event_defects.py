"""Defects of the event log: in the shard that tells, in the queue, in what counts, and in what writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from foqs.host.event_log import lives
from foqs.host.event_log.lines import Line
from foqs.host.event_log.log_service import EventLog
from foqs.host.event_log.rollups import RollUps
from foqs.host.event_log.sequence import FileSequence
from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.model.item import Outcome, Phase, ShardItem
from foqs.shard.port import Rewrite, TransactionResult
from foqs.shard.state.events import Ends, Enqueued, Events
from foqs.shard.state.index import fill_head
from foqs.shard.state.ops import settle
from foqs.shard.state.ops.change import Changing
from foqs.shard.state.ops.settle import Settling
from tests.sim.chance import Profile
from tests.sim.events import MemoryFile
from tests.sim.planting import in_place_of

_AT_MS = 1_700_000_000_000
_changed = Changing.committed
_rolled_back = Settling.rolled_back
_lost = Settling.lost
_record = EventLog.record
_outcome_of = settle._outcome_of
_abandon = FileSequence._abandon


def _has_failures(profile: Profile) -> bool:
    return bool(sum(profile.fates))


@in_place_of(Settling, "rolled_back", _has_failures)
def tells_ends_that_were_rolled_back(self: Settling, error: FoqsError) -> None:
    for settlement in self._settlements:
        if settlement.completion is not None:
            self._index.events.ends += settlement.ends(_AT_MS)
    _rolled_back(self, error)


@in_place_of(Settling, "lost", lambda profile: bool(profile.host_fault_rate or sum(profile.fates)))
def tells_ends_that_nobody_knows_of(self: Settling, unknown: FoqsError, undone: FoqsError) -> None:
    """So the next owner may tell them once more."""
    _lost(self, unknown, undone)
    for settlement in self._settlements:
        self._index.events.ends += settlement.ends(_AT_MS)


@in_place_of(Changing, "committed")
def tells_a_second_end_of_a_dead_letter(self: Changing, result: TransactionResult, now: Now) -> None:
    _changed(self, result, now)
    for change in self._changes:
        if change.rewrite is None and change.row.lane < 0:
            topic = self._index.by_number[change.row.topic]
            item = ShardItem(change.row.key, topic, change.row.priority, change.row.due_at, 0, Phase.GONE)
            fill_head(item, change.row)
            self._index.events.ends.append(Ends(change.outcome, now.server_ms, {topic: [item]}))


@in_place_of(settle, "_outcome_of")
def tells_a_death_as_a_nack(item: ShardItem, rewrite: Rewrite | None, *, is_of_call: bool) -> Outcome | None:
    outcome = _outcome_of(item, rewrite, is_of_call=is_of_call)
    return Outcome.NACKED if outcome is Outcome.DEAD else outcome


@in_place_of(EventLog, "record")
def forgets_enqueues_that_come_with_ends(self: EventLog, events: Events) -> None:
    if events.ends:
        events.enqueued = []
    _record(self, events)


@in_place_of(EventLog, "_log_lost")
def does_not_tell_what_it_had_no_room_for(self: EventLog, now_ms: int) -> None:
    return None


@in_place_of(RollUps, "add_enqueued")
def counts_a_batch_as_one_item(self: RollUps, enqueued: Enqueued) -> None:
    minute, topic = self._minute(enqueued.at_ms), enqueued.topic
    for priority in set(enqueued.priorities):
        self._series(minute, (topic.namespace, topic.base_name, priority, "enqueued"), 1).count += 1


@in_place_of(lives, "_text")
def shortens_a_column_whose_ends_are_alike(column: list[Any]) -> str:
    if column[0] == column[-1]:
        del column[1:]
    return repr(column).replace("None", "null").replace(" ", "")


@in_place_of(FileSequence, "drop")
def does_not_count_what_it_does_not_write(self: FileSequence, lines: Sequence[Line]) -> None:
    return None


@in_place_of(FileSequence, "drop")
def counts_a_row_that_it_does_not_write_as_one_item(self: FileSequence, lines: Sequence[Line]) -> None:
    self.lost_count += sum([line.records_count for line in lines])
    self.lost_items_count += len(lines)


@in_place_of(FileSequence, "keep")
def forgets_what_the_disk_refuses(self: FileSequence, lines: Iterable[Line]) -> None:
    list(lines)


@in_place_of(FileSequence, "_abandon")
def writes_again_what_was_flushed(self: FileSequence) -> None:
    if self._file is not None:
        self._unflushed = [Line(line, 1, 1) for line in cast(MemoryFile, self._file).lines]
    _abandon(self)
