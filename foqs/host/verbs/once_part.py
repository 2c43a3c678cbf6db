"""The items with dedup ids in one enqueue that one shard received, and their outcomes."""

from __future__ import annotations

from collections.abc import Collection

from foqs.host.verbs.distant_holders import HeldElsewhere
from foqs.host.verbs.made import Made
from foqs.host.verbs.serial_part import of_slot
from foqs.model import ids
from foqs.model.calls import EnqueueResult, PositionErrors
from foqs.model.errors import FoqsError, PausedError
from foqs.model.held import Holder
from foqs.shard.state.events import OnceOutcome
from foqs.shard.writer.shard_writer import ShardWriter


class OncePart:
    """The items with dedup ids of one call that one shard received."""

    __slots__ = ("_made", "_shard_id", "outcome", "writer")

    def __init__(
        self, writer: ShardWriter, shard_id: int, made: Made, holding: Collection[int], refusal: FoqsError | None
    ) -> None:
        """`made` are the items of the call, and `holding` the keys of those that hold their ids until they end.

        `refusal` is the error of items that are no repeats.
        """
        self.writer = writer
        self._shard_id = shard_id
        self._made = made
        self.outcome = OnceOutcome(refusal, made.copies, made.room, holding)

    def made_count(self) -> int:
        """Return the number of items that were made, copies included."""
        made, copies = self.outcome.made, self.outcome.copies
        return len(made) + (sum([len(copies.get(key, ())) for key in made]) if copies else 0)

    def held_elsewhere(self) -> list[HeldElsewhere]:
        """Return the repeats whose first item held their id on another shard, and might have ended since."""
        outcome, found = self.outcome, self.outcome.elsewhere
        return [
            HeldElsewhere(
                position,
                found[item.key],
                Holder(*outcome.firsts[item.key], outcome.first_copies.get(item.key, 0)),
            )
            for position, item in (self._made.items.items() if found else ())
            if item.key in found
        ]

    def enter_outcomes(self, result: EnqueueResult, refused: PositionErrors, unknown: FoqsError | None) -> None:
        """Enter the outcome of each item; `unknown` is the error of an item whose outcome is not known."""
        shard_id, outcome, items = self._shard_id, self.outcome, self._made.items
        firsts, errors = outcome.firsts, outcome.errors
        if len(outcome.made) == len(items):
            self._made.enter_ids(shard_id, result.ids)
            return
        made = set(outcome.made)
        shared: dict[FoqsError, FoqsError] = {}
        for position, item in items.items():
            key = item.key
            if key in made:
                result.ids[position] = self._made.id_of(shard_id, item)
            elif key in firsts:
                # Groups can have changed since, and the first one can be of another topic: its own number counts.
                copies_count = outcome.first_copies.get(key, 0)
                first_id = ids.item_id(*firsts[key])
                result.ids[position] = ids.with_copies(first_id, copies_count) if copies_count else first_id
                result.duplicates.append(position)
            else:
                error = errors.get(key, unknown)
                assert error is not None, "it has ended"
                # A full topic is no reason to refuse the whole call.
                errors_of = result.errors if isinstance(error, PausedError) else refused
                errors_of[position] = shared.get(error) or shared.setdefault(error, of_slot(error))
