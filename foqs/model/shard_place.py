"""The decision which copy of a shard's database can be served, and how much was lost with another copy. Pure.

The lock of a shard belongs to one server. It decides between hosts that reach that server, and says nothing about a
copy of the database on another server. The row of the shard in the meta database does.
docs/decisions/0046-one-place-of-a-shard.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from foqs.model.cluster import ShardRow, ShardUse


class FoundShard(NamedTuple):
    """The state of the database that the holder of a shard's lock finds."""

    server: str
    """The server of the database, by its own name; empty if unknown."""
    epoch: int
    """The epoch of the owner that wrote its name there last."""
    owner: str
    transaction_number: int


FOUND_NOTHING = FoundShard("", 0, "", 0)


class EpochAsk(NamedTuple):
    """The question of a holder of a shard's lock for an epoch."""

    found: FoundShard
    at_least: int
    """The bound that the new epoch must exceed."""
    is_renewal: bool = False
    """True if the shard is already served, under an earlier epoch, and will be served further as it is."""
    place: str = ""
    """The place of the database, as the meta database had it when the holder began; empty if it had none."""


class EpochGiven(NamedTuple):
    """A new epoch of a shard."""

    epoch: int
    before: ShardRow | None
    """The row of the shard before; None if it had none."""


def nobody_is_dead(owner: str, epoch: int) -> bool:
    """Return False: a process that has watched no owner knows of no death."""
    return False


def refusal(row: ShardRow, me: str, ask: EpochAsk, is_dead: Callable[[str, int], bool]) -> str:
    """Return why the process `me`, which holds the shard's lock on one server, must not take it there, or an empty
    text.

    It can take the shard on the server of the last owner, because its lock was free. It can take it elsewhere if the
    last owner is itself, is dead, or has reported that it has lost its session with its server. It must not take a
    parked shard: only its owner serves it on, until it leaves.
    """
    found = ask.found
    if row.use is ShardUse.PARKED and not (ask.is_renewal and row.server and row.owner == me):
        return f"shard {row.shard_id} is parked, and nobody serves it until foqs shard unpark {row.shard_id}"
    if row.is_relocated and row.place != ask.place:
        return f"shard {row.shard_id} was relocated to {row.place}, and this is its former database ({ask.place})"
    if row.owner in ("", me):
        return ""
    is_same = row.server == found.server
    if ask.is_renewal:
        # An owner in between has written data that this one does not know, even if it is dead now.
        return "" if is_same else _elsewhere(row, found)
    if row.server and not is_same and not is_dead(row.owner, row.epoch):
        return _elsewhere(row, found)
    is_behind = row.epoch < found.epoch and found.owner not in ("", me)
    if is_behind and not is_dead(found.owner, found.epoch):
        return _not_known(row.shard_id, found)
    return ""


def refusal_without_row(shard_id: int, me: str, found: FoundShard, is_dead: Callable[[str, int], bool]) -> str:
    """Return the refusal if the meta database has no row, because the lost row can be that of an owner on another
    server.
    """
    if found.owner in ("", me) or is_dead(found.owner, found.epoch):
        return ""
    return _not_known(shard_id, found)


def _elsewhere(row: ShardRow, found: FoundShard) -> str:
    return (
        f"shard {row.shard_id} is served by {row.owner!r} on another server, {row.server or '(not known)'}. The URL of "
        f"this host leads to a copy of its database on {found.server}: correct the URL. If the copy is to be served, "
        "stop the other server, or that host: the copy is taken once that host is dead or has lost its server"
    )


def _not_known(shard_id: int, found: FoundShard) -> str:
    return (
        f"shard {shard_id} had epoch {found.epoch} of {found.owner!r}, which the meta database has lost, and nobody "
        "knows where that host serves it now: it is taken once that one is dead, or has said it anew"
    )


class Remembered(NamedTuple):
    """A process's memory of its last tenure of a shard, from which it determines the loss."""

    epoch: int
    committed_number: int
    """The number of the last transaction that it saw committed."""
    reported_number: int
    """The last number that it has reported to the meta database."""


def lost_by_row(before: ShardRow | None, found: FoundShard) -> int:
    """Return how many transactions that the last owners reported are missing in the database to be served."""
    if before is None:
        return 0
    # Without a row of that owner, the database lacks its transactions, regardless of the numbers.
    kept = (
        found.transaction_number if found.epoch >= before.epoch else min(found.transaction_number, before.first_number)
    )
    return max(0, before.last_number - kept)


def lost_by_memory(before: ShardRow | None, found: FoundShard | None, mine: Remembered) -> int:
    """Return the loss that only this process knows of; `found` is None if another process has taken the shard."""
    if before is not None and before.epoch > mine.epoch:
        # The next owner has counted the reported transactions. It might never have served, or elsewhere.
        is_as_left = found is not None and found.epoch == mine.epoch
        there = found.transaction_number if found is not None and is_as_left else 0
        return max(0, mine.committed_number - max(before.first_number, mine.reported_number, there))
    if found is None:
        return 0
    return max(0, mine.committed_number - found.transaction_number - lost_by_row(before, found))


class Tenure(NamedTuple):
    """A process's memory of its last ownership of a shard, with which it can reopen the shard as it was left.

    That needs no new epoch, and so no meta database.
    """

    epoch: int
    transaction_number: int
    """The number of the last transaction that the process saw committed."""
    last_key: int
    """No key of the epoch above this one was ever assigned."""
    server: str = ""
    """The server on which the process had it."""

    def goes_on(self, found: FoundShard) -> bool:
        """True if a shard in this found state is the one that was left.

        With a smaller number it is not, even with the same epoch: a replica that was behind was promoted, or a backup
        was restored, and acknowledged items are missing there. On another server it is not either, because other hosts
        might have the shard on the server where it was left.
        """
        is_there = found.epoch == self.epoch and found.server == self.server
        return is_there and found.transaction_number >= self.transaction_number
