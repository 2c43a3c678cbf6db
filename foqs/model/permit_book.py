"""The book of one topic with a limit of items in flight: the permits of each shard, together no more than the limit.

A permit lets one item of the topic be under claim or lease on its shard. Permits belong to shards, as leases do: the
owner of a shard claims no more items of the topic than the shard has permits, so that the leases of all shards are
never more than the limit. A dead host, a hand-over or a cut link changes nothing in that. A host that owns a shard by a
later epoch begins with the leases that it has found there, and a host with an earlier epoch can change nothing. A
removed shard has no permits.

A book grants by the limit of the present policies only. A host that was cut off and knows former ones keeps its
permits, and can give them back.

Pure: times are milliseconds of the clock of the meta database's server, and come in as arguments. They decide only
whose turn it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple

from foqs.model import limits

WANT_MS = 3 * limits.SECOND_MS
"""A shard whose owner has not asked again for this long waits no more."""
SHARDS_MAX = 1_500
"""Shards that a book can have. Further shards get no permits."""

_FORMAT = 1
_ENTRY = Struct("<IQIIQQ")
BOOK_BYTES_MAX = 65_535
"""The size of the column that holds a book, in bytes."""

assert 1 + SHARDS_MAX * _ENTRY.size <= BOOK_BYTES_MAX


class ShardAsk(NamedTuple):
    """The ask of the owner of a shard for permits of a topic."""

    shard_id: int
    epoch: int
    """The epoch of the ownership."""
    kept_count: int
    """The permits that the owner keeps. It uses no more than these until it knows the answer."""
    used_count: int
    """Its items of the topic that are claimed or under lease. It can be more than it keeps, after a lower limit or in a
    new ownership.
    """
    wanted_count: int
    """Further permits that it has ready items and consumers for."""
    since_epoch: int = 0
    """The epoch with which the ownership began, if it has renewed its epoch since; 0 if not."""


class PermitAsk(NamedTuple):
    """The ask of a host to the book of a topic, for its shards."""

    limit: int
    """The limit of the topic as the host knows it."""
    shards: tuple[ShardAsk, ...]
    policies_version: int = 0
    """The version of the policies that have this limit, of the topic's namespace."""


class PermitFacts(NamedTuple):
    """The rows of the meta database that bear on the answer of a book."""

    policies_versions: Mapping[int, int]
    """The present versions of the policies, by namespace. A namespace without an entry has version 0."""
    removed: Mapping[int, int]
    """The removed shards, each with its last epoch."""


class PermitAnswer(NamedTuple):
    """The permits of each shard that was asked for, by shard id. A shard with a later owner is not in it."""

    permits: Mapping[int, int]


class ShardPermits:
    """The permits of one shard."""

    __slots__ = ("asked_at_ms", "epoch", "permits", "since_ms", "wanted_count")

    def __init__(
        self, epoch: int, permits: int = 0, wanted_count: int = 0, since_ms: int = 0, asked_at_ms: int = 0
    ) -> None:
        self.epoch = epoch
        self.permits = permits
        self.wanted_count = wanted_count
        """The permits that its owner waits for."""
        self.since_ms = since_ms
        """The time since which it waits."""
        self.asked_at_ms = asked_at_ms
        """The time of its last ask, if it waits."""


class PermitBook:
    """The permits of one topic by shard."""

    __slots__ = ("shards",)

    def __init__(self, shards: dict[int, ShardPermits] | None = None) -> None:
        self.shards: dict[int, ShardPermits] = {} if shards is None else shards

    # ---- asks ----

    def answer(self, namespace: int, ask: PermitAsk, now_ms: int, facts: PermitFacts) -> PermitAnswer:
        """Forget removed shards, then answer the ask, with no further permits for a host that knows former policies."""
        for shard_id, epoch in facts.removed.items():
            entry = self.shards.get(shard_id)
            if entry is not None and entry.epoch <= epoch:  # Else the shard was added again.
                del self.shards[shard_id]
        is_current = ask.policies_version == facts.policies_versions.get(namespace, 0)
        return self.ask(ask if is_current else ask._replace(limit=0), now_ms)

    def ask(self, ask: PermitAsk, now_ms: int) -> PermitAnswer:
        """Take back the permits that the owner of these shards does not keep, and grant it free ones that it wants."""
        self._forget_waits(now_ms)
        mine: dict[int, ShardPermits] = {}
        for one in ask.shards:
            entry = self.shards.get(one.shard_id)
            if entry is None:
                if len(self.shards) >= SHARDS_MAX:
                    continue
                entry = self.shards[one.shard_id] = ShardPermits(one.epoch)
            if entry.epoch > one.epoch:
                continue  # The shard has a later owner.
            # A new owner knows of no permits: it has those that the leases which it found there need.
            is_same_owner = entry.epoch >= (one.since_epoch or one.epoch)
            kept_count = min(one.kept_count, entry.permits) if is_same_owner else 0
            entry.epoch, entry.permits = one.epoch, max(kept_count, one.used_count)
            if one.wanted_count and not entry.wanted_count:
                entry.since_ms = now_ms
            entry.wanted_count, entry.asked_at_ms = one.wanted_count, now_ms
            mine[one.shard_id] = entry
        self._grant(mine, ask.limit, now_ms)
        answer = PermitAnswer({shard_id: entry.permits for shard_id, entry in mine.items()})
        for shard_id, entry in list(self.shards.items()):
            if not (entry.permits or entry.wanted_count):
                del self.shards[shard_id]
        return answer

    def _grant(self, mine: Mapping[int, ShardPermits], limit: int, now_ms: int) -> None:
        """Grant free permits: first to each shard up to its share, in the order in which they began to wait."""
        free_count = self.free_count(limit)
        share = max(1, self.share(limit))
        waiting = sorted(
            [(entry.since_ms, shard_id, entry) for shard_id, entry in self.shards.items() if entry.wanted_count]
        )
        for up_to in (share, limit):
            for _, shard_id, entry in waiting:
                count = min(entry.wanted_count, up_to - entry.permits, free_count)
                if count <= 0 or (shard_id not in mine and up_to > share):
                    continue
                free_count -= count  # That of another shard is reserved for its next ask.
                if shard_id in mine:
                    entry.permits += count
                    entry.wanted_count -= count
                    entry.since_ms = now_ms  # For more it waits behind the others.

    # ---- looks ----

    def free_count(self, limit: int) -> int:
        """Return the permits that no shard has. It is negative after a lower limit."""
        return limit - sum([entry.permits for entry in self.shards.values()])

    def share(self, limit: int) -> int:
        """Return the permits that each shard can keep while another one waits: 0 for more shards than permits. Then
        shards have turns.
        """
        return limit // max(1, len(self.shards))

    def needy_count(self, limit: int, now_ms: int) -> int:
        """Return how many permits shards wait for within their shares, beyond those that are free."""
        self._forget_waits(now_ms)
        share = max(1, self.share(limit))
        needed = [
            min(entry.wanted_count, share - entry.permits)
            for entry in self.shards.values()
            if entry.wanted_count and entry.permits < share
        ]
        return max(0, sum(needed) - max(0, self.free_count(limit)))

    def waiting_count(self, limit: int, now_ms: int) -> int:
        """Return how many permits shards wait for, beyond their shares too, and beyond those that are free."""
        self._forget_waits(now_ms)
        wanted = [min(entry.wanted_count, limit - entry.permits) for entry in self.shards.values()]
        return max(0, sum([count for count in wanted if count > 0]) - max(0, self.free_count(limit)))

    def waited_until_ms(self) -> int:
        """Return the time until which shards wait for permits; 0 if none does."""
        asked = [entry.asked_at_ms + WANT_MS for entry in self.shards.values() if entry.wanted_count]
        return max(asked, default=0)

    def _forget_waits(self, now_ms: int) -> None:
        """Forget the waits of shards that have not asked again. A clock that was stepped back ends them as well."""
        for entry in self.shards.values():
            if entry.wanted_count and abs(now_ms - entry.asked_at_ms) > WANT_MS:
                entry.wanted_count = 0

    # ---- rows ----

    def pack(self) -> bytes:
        """Return the row, of BOOK_BYTES_MAX bytes at most."""
        rows = [
            _ENTRY.pack(shard_id, entry.epoch, entry.permits, entry.wanted_count, entry.since_ms, entry.asked_at_ms)
            for shard_id, entry in sorted(self.shards.items())
        ]
        return b"".join([bytes([_FORMAT]), *rows])

    @classmethod
    def unpack(cls, packed: bytes) -> PermitBook:
        """Read a row, which is empty for a new book. Raises ValueError if no `pack` of this format made it."""
        if not packed:
            return cls()
        if packed[0] != _FORMAT or (len(packed) - 1) % _ENTRY.size:
            raise ValueError(
                f"a book of permits has format {packed[:1].hex()} and {len(packed)} bytes; this host knows {_FORMAT}"
            )
        rows = _ENTRY.iter_unpack(memoryview(packed)[1:])
        return cls({shard_id: ShardPermits(*values) for shard_id, *values in rows})
