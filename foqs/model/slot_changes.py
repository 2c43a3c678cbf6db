"""The changes of one transaction to the slots of dedup ids of a shard."""

from __future__ import annotations

from typing import NamedTuple

from foqs.model.slots import SlotMove, SlotTable


class SlotIds(NamedTuple):
    """The ids of a namespace that last arrived with slots."""

    namespace: int
    version: int
    """The version of the table of the move."""
    slots: tuple[int, ...]
    """All moved slots."""
    read_to: int
    """The number up to which the log of the other shard is read."""
    first: int
    """The number of the first arrived id in this shard's own log."""
    moved_end: int
    """The number after the last arrived id."""


class SlotChanges(NamedTuple):
    """The changes of a transaction to the slots of the shard."""

    kept: SlotTable | None = None
    """The new table of its copy."""
    arriving: SlotMove | None = None
    """The move to this shard that begins."""
    appended: SlotIds | None = None
    """The ids of the slots that arrive with the transaction."""
    has_arrived: bool = False
    """True if the move to this shard has ended."""
