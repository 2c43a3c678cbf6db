"""Which of several copies of a shard's database may be served, and what was lost with the others: pure.

The lock of a shard is one server's, so that it decides between hosts that reach this one, and says nothing of a copy of
the database on another server. The row of the shard in the meta database does.
docs/decisions/0046-one-place-of-a-shard.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from foqs.model.cluster import ShardRow


class FoundShard(NamedTuple):
    """What the holder of a shard's lock finds in the database."""

    server: str
    """The server that the database is on, as it calls itself; empty where that is not known."""
    epoch: int
    """The epoch of the owner that wrote its name there last."""
    owner: str
    transaction_number: int
    """The number of the last transaction there."""


FOUND_NOTHING = FoundShard("", 0, "", 0)


class EpochAsk(NamedTuple):
    """The question of a holder of a shard's lock for an epoch."""

    found: FoundShard
    at_least: int
    """The new epoch is to be above it."""
    is_renewal: bool = False
    """The shard is served already, under an earlier epoch, and goes on being served as it is."""


class EpochGiven(NamedTuple):
    """A new epoch of a shard."""

    epoch: int
    before: ShardRow | None
    """The row of the shard before; None where there was none."""


def nobody_is_dead(owner: str, epoch: int) -> bool:
    """What somebody knows who has watched nobody."""
    return False


def refusal(row: ShardRow, me: str, ask: EpochAsk, is_dead: Callable[[str, int], bool]) -> str:
    """Why the process `me`, which holds the shard's lock on one server, must not take it there; empty if it may.

    It may on the server on which the last owner served: that one's lock was free. Elsewhere it may if the last owner is
    itself, is dead, or has said that it has no session with its server any more.
    """
    found = ask.found
    if row.owner in ("", me):
        return ""
    is_same = row.server == found.server
    if ask.is_renewal:
        # Who served meanwhile has written what this one does not know, however dead it is now.
        return "" if is_same else _elsewhere(row, found)
    if row.server and not is_same and not is_dead(row.owner, row.epoch):
        return _elsewhere(row, found)
    is_behind = row.epoch < found.epoch and found.owner not in ("", me)
    if is_behind and not is_dead(found.owner, found.epoch):
        return _not_known(row.shard_id, found)
    return ""


def refusal_without_row(shard_id: int, me: str, found: FoundShard, is_dead: Callable[[str, int], bool]) -> str:
    """The same where the meta database has no row: it may have lost that of an owner which lives elsewhere."""
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
    """What a process remembers of its last tenure of a shard, to say what was lost of it."""

    epoch: int
    committed_number: int
    """The number of the last transaction that it saw committed."""
    told_number: int
    """The number up to which it has told the meta database."""


def lost_by_row(before: ShardRow | None, found: FoundShard) -> int:
    """The transactions that the last owners told of and that a database lacks which is served from now on."""
    if before is None:
        return 0
    # Of an owner that never wrote its name there nothing is there, whatever the numbers say.
    kept = (
        found.transaction_number if found.epoch >= before.epoch else min(found.transaction_number, before.first_number)
    )
    return max(0, before.last_number - kept)


def lost_by_memory(before: ShardRow | None, found: FoundShard | None, mine: Remembered) -> int:
    """The same of which this process alone knows; `found` is None if another one has taken the shard."""
    if before is not None and before.epoch > mine.epoch:
        # The next owner has counted what it was told of. It may never have served, or elsewhere.
        is_as_left = found is not None and found.epoch == mine.epoch
        there = found.transaction_number if found is not None and is_as_left else 0
        return max(0, mine.committed_number - max(before.first_number, mine.told_number, there))
    if found is None:
        return 0
    return max(0, mine.committed_number - found.transaction_number - lost_by_row(before, found))
