"""A census: one question to every shard of the cluster, asked through the meta database.

How many items of a namespace do you hold, which is the highest namespace number that you ever saw, and which slot table
do you know? A namespace is created or deleted, the first slot table is made, and a consumer group is declared or
forgotten, only on the answers of all shards (docs/decisions/0022-deleting-namespaces.md, 0026-slots.md). So is a topic
made serial, and so does a move of slots begin: their items are refused meanwhile (0068-serial-topics.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple


class ClosedKind(IntEnum):
    """The meaning of the name of something that is closed during a census."""

    TOPIC = 0
    """A topic, with all its groups."""
    PREFIX = 1
    """All topics that begin so."""
    SLOT = 2
    """The serial topics of a slot."""


class Closed(NamedTuple):
    """Something that takes no items while a census of it is open."""

    kind: ClosedKind
    name: str
    """The name of the topic, the prefix, or the number of the slot."""


class Census(NamedTuple):
    id: int
    """A random number. A meta database that was restored from an older state does not know it."""
    namespace: int
    """The number of the namespace that is closed during the census, because it is being deleted; 0 for none."""
    topic_namespace: int = 0
    """The number of the namespace of `topic`, which stays open."""
    topic: str = ""
    """The hidden name of the topic whose items are counted; empty for the closed namespace, or for none."""
    closes: tuple[Closed, ...] = ()
    """The topics of `topic_namespace`, or the slots, that take no items until the census is over."""

    def closed(self, kind: ClosedKind) -> list[str]:
        """Return the closed names of one kind."""
        return [one.name for one in self.closes if one.kind is kind]


class CensusAnswer(NamedTuple):
    """The answer of one shard's owner, which has committed a transaction since it saw the census.

    Until the owner sees that the census is over, it admits no item of the closed namespace.
    """

    shard_id: int
    epoch: int
    items_count: int
    """Items of the closed namespace that the shard holds; of a topic, 1 if it holds any."""
    number_max: int
    """The highest namespace number that the shard, or its owner's process, ever saw."""
    slots_version: int
    """The highest version of a slot table that the shard or its owner's process knows, or that is under way to the
    shard; 0 for none.
    """
    held: bytes = b""
    """A bit for each closed thing of the census, in order: 1 if the shard holds items of it. It has at least one byte
    from every build that knows closed things and consumer groups, and none from an older one.
    """


def unanswered(epochs: Mapping[int, int], answers: Iterable[CensusAnswer]) -> list[int]:
    """Return the shards whose present owner has not answered. `epochs` has the last epoch taken of each shard.

    A restored meta database can know an older epoch than the shard has, so the answer of a later owner counts.
    """
    answered = {answer.shard_id: answer.epoch for answer in answers}
    return sorted(shard_id for shard_id, epoch in epochs.items() if answered.get(shard_id, -1) < epoch)


def bits_of(held: Sequence[bool]) -> bytes:
    """Return the bits of an answer, one for each closed thing."""
    return sum([1 << at for at, is_held in enumerate(held) if is_held]).to_bytes(len(held) // 8 + 1, "little")


def held_of(census: Census, answers: Iterable[CensusAnswer]) -> set[Closed]:
    """Return the closed things of which a shard holds items."""
    found: set[Closed] = set()
    for answer in answers:
        bits = int.from_bytes(answer.held, "little")
        found |= {one for at, one in enumerate(census.closes) if bits >> at & 1}
    return found


NOTHING_HELD = bits_of(())
"""The `held` of an answer to a census that closes nothing."""


def of_old_builds(census: Census, answers: Iterable[CensusAnswer], *, is_of_groups: bool = False) -> list[int]:
    """Return the shards whose owners know no closed things, if the census closes any or is about consumer groups.

    Such an owner makes no copies, and would say so by no answer of its own.
    """
    return [answer.shard_id for answer in answers if (census.closes or is_of_groups) and not answer.held]


_CLOSED = Struct(">BH")


def pack_closed(closes: Iterable[Closed]) -> bytes:
    """Return closed things in the form of the meta database."""
    found = [(one.kind, one.name.encode()) for one in closes]
    return b"".join([_CLOSED.pack(kind, len(name)) + name for kind, name in found])


def unpack_closed(packed: bytes) -> tuple[Closed, ...]:
    found: list[Closed] = []
    at = 0
    while at < len(packed):
        kind, size = _CLOSED.unpack_from(packed, at)
        at += _CLOSED.size
        found.append(Closed(ClosedKind(kind), packed[at : at + size].decode()))
        at += size
    return tuple(found)
