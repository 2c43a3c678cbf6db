"""The shards of this host: the objects of each shard, and all shards by id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from foqs.background.lane import Lane
from foqs.background.service import Service, ServiceState
from foqs.host.shards.ttl_scan import TtlScan
from foqs.model import limits
from foqs.model.cluster import ShardRow, ShardUse, shards_named
from foqs.model.errors import UnavailableError
from foqs.model.shard_place import Tenure
from foqs.shard.state.engine import ShardState
from foqs.shard.state.events import Events
from foqs.shard.writer.shard_writer import ShardWriter
from foqs.storage.shard.packs.pack_index import PackIndex
from foqs.storage.shard.shard_reader import ShardReader
from foqs.storage.shard.shard_store import ShardStore

NO_SHARD_RETRY_MS = 500
"""The retry_after_ms of a host that owns no shard."""

MOVING_RETRY_MS = 100
"""The retry_after_ms of a call for a shard that moves from one live host to another."""

T = TypeVar("T")


class OwnedShard(Service):
    """The objects of one shard that a host owns or tries to own: its writer, its readers and its TTL scan.

    The host makes it, and starts, drains and stops it with itself or by itself. `writer.shard` is the state of the
    shard while it is owned.
    """

    def __init__(
        self,
        writer: ShardWriter,
        store: ShardStore,
        reader: ShardReader,
        exporter: ShardReader,
        packs: PackIndex,
        on_events: Callable[[Events], None],
        place: str = "",
    ) -> None:
        """`on_events` gets the events of deletions of expired items.

        `reader` is for pages of operators and the TTL scan, and `exporter` for exports, which can take any time.
        """
        super().__init__(f"owned-shard-{writer.shard_id}")
        self.shard_id = writer.shard_id
        self.writer = writer
        self.reader = reader
        self.exporter = exporter
        self.packs = packs
        self.place = place
        """The place of its database in the cluster's records."""
        self._store = store
        self._scan = TtlScan(writer, reader, self.read, on_events)
        self._read_lane = Lane(f"reader-{writer.shard_id}")
        self._export_lane = Lane(f"exporter-{writer.shard_id}")

    async def read(self, work: Callable[[], T]) -> T:
        """Do work of the reader, after all that was asked before.

        Raises UnavailableError once the shard was handed over.
        """
        return await self._run(self._read_lane, work)

    async def export(self, work: Callable[[], T]) -> T:
        """Do work of the exporter, after all that was asked before.

        Raises UnavailableError once the shard was handed over.
        """
        return await self._run(self._export_lane, work)

    def _run(self, lane: Lane, work: Callable[[], T]) -> asyncio.Future[T]:
        if self.state is ServiceState.STOPPED:
            raise UnavailableError(
                f"shard {self.shard_id} was handed on, or the host ends: nothing was done, try again",
                retry_after_ms=MOVING_RETRY_MS,
                nothing_done=True,
            )
        return lane.run(work)

    def use_url(self, url: str) -> None:
        """Open new sessions by this URL, which leads to the same database."""
        self._store.use_url(url)
        self.reader.use_url(url)
        self.exporter.use_url(url)

    async def _start(self) -> None:
        await self.writer.start()
        self._scan.start()

    async def _drain(self) -> None:
        await self.writer.drain()

    async def _stop(self) -> None:
        await self._scan.stop()
        self.reader.interrupt()
        self.exporter.interrupt()
        await self._read_lane.run(self.reader.close)
        await self._export_lane.run(self.exporter.close)
        self._read_lane.join()
        self._export_lane.join()
        await self.writer.stop()
        self.packs.close()


def check_open(row: ShardRow) -> None:
    """Raise UnavailableError for a parked shard, whose database can be in the midst of a restore."""
    if row.use is ShardUse.PARKED:
        raise parked(row.shard_id)


def parked(shard_id: int) -> UnavailableError:
    """Return the error of a call that needs a parked shard."""
    return UnavailableError(
        f"shard {shard_id} is parked, and nobody serves it until foqs shard unpark {shard_id}: nothing was done",
        retry_after_ms=NO_SHARD_RETRY_MS,
        nothing_done=True,
    )


class Shards:
    """The shards of this host, by id, with their ownership and health for the verbs.

    The host adds and removes them, also while it runs. All other parts of the host ask here and never keep a shard's
    state, because it changes with every takeover.
    """

    def __init__(
        self,
        shard_ids: Iterable[int] = (),
        refused: Mapping[int, str] = MappingProxyType({}),
        is_elsewhere: Callable[[int], bool] = lambda shard_id: False,
    ) -> None:
        """`shard_ids` are the shards that the host knows of before it has asked.

        `refused` returns at any time why shards of the host's configuration were not added to the cluster.

        `is_elsewhere` is True for a shard that another host serves, whose part of a page is asked of that one.
        """
        self.refused = refused
        self.uses: Mapping[int, ShardUse] = dict.fromkeys(shard_ids, ShardUse.SERVING)
        """All shards of the cluster, on any host."""
        self.draining: frozenset[int] = frozenset()
        """The shards that take no new items without dedup ids."""
        self.tiers: Mapping[int, str] = {}
        """The tiers of shards that have one."""
        self.moving: Collection[int] = ()
        """The shards that are about to move from one live host to another."""
        self.by_id: dict[int, OwnedShard] = {}
        self.writers: dict[int, ShardWriter] = {}
        """The writers of the same shards."""
        self._tenures: dict[int, Tenure] = {}
        """The tenures of shards that this host has left, until it tries to own them again."""
        self.is_elsewhere = is_elsewhere

    @property
    def here(self) -> list[int]:
        """The shards that this host serves, and the shards that no host serves."""
        return [shard_id for shard_id in self.uses if self.serves(shard_id) or not self.is_elsewhere(shard_id)]

    def asked(self, wanted: Collection[int] | None) -> list[tuple[int, ShardState]]:
        """Return the shards for a page: `wanted`, or by default all that are `here`.

        Raises UnavailableError for a shard that is not served, because a page without it would be wrong.
        """
        shard_ids = sorted(self.here if wanted is None else wanted)
        if lost := [shard_id for shard_id in shard_ids if not self.serves(shard_id)]:
            raise self.none_served(lost)
        return [(shard_id, self.serving(shard_id)[1]) for shard_id in shard_ids]

    def serves(self, shard_id: int) -> bool:
        """True if this host owns the shard now."""
        writer = self.writers.get(shard_id)
        return writer is not None and writer.shard is not None

    def tier_of(self, shard_id: int) -> str:
        return self.tiers.get(shard_id, "")

    def know(self, rows: Collection[ShardRow], moving: Collection[int]) -> None:
        """Set all shards of the cluster, and those about to move."""
        self.uses, self.moving = {row.shard_id: row.use for row in rows}, moving
        self.tiers = {row.shard_id: row.tier for row in rows if row.tier}
        self.draining = frozenset([row.shard_id for row in rows if row.use is ShardUse.DRAINING])

    def add(self, shard: OwnedShard) -> None:
        self.by_id[shard.shard_id] = shard
        self.writers[shard.shard_id] = shard.writer

    def remove(self, shard_id: int) -> None:
        """Remove a shard that this host has released, but keep its tenure."""
        del self.by_id[shard_id]
        if (tenure := self.writers.pop(shard_id).tenure) is not None:
            self._tenures[shard_id] = tenure

    def take_tenure(self, shard_id: int) -> Tenure | None:
        """Return and forget the tenure of a shard that this host has left, or None.

        If no host has owned the shard since, its next writer continues that tenure and needs no new epoch.
        """
        return self._tenures.pop(shard_id, None)

    def owned(self) -> list[tuple[ShardWriter, ShardState]]:
        """Return the shards that are owned now."""
        return [(writer, shard) for writer in list(self.writers.values()) if (shard := writer.shard) is not None]

    def serving(self, shard_id: int) -> tuple[ShardWriter, ShardState]:
        """Return the writer and the state of an owned shard. Raises UnavailableError, with nothing done, for others."""
        writer = self.writers.get(shard_id)
        shard = writer.shard if writer is not None else None
        if writer is None or shard is None:
            raise self.not_served(shard_id)
        return writer, shard

    def not_served(self, shard_id: int) -> UnavailableError:
        """Return the error of a call for a shard that this host does not own now."""
        writer = self.writers.get(shard_id)
        retry_after_ms = MOVING_RETRY_MS if shard_id in self.moving else None
        if writer is None:
            message = f"this host has no shard {shard_id}: ask the one that has"
            if shard_id not in self.uses:
                message = (
                    f"the cluster has no shard {shard_id} ({shard_id:x} in ids of items), as far as this host knows: "
                    "see foqs shard list"
                )
            elif self.uses[shard_id] is ShardUse.PARKED:
                return parked(shard_id)
            return UnavailableError(
                message,
                retry_after_ms=retry_after_ms,
                nothing_done=True,
            )
        return UnavailableError(
            f"shard {writer.shard_id} is not served by this host now: {writer.detail}",
            retry_after_ms=retry_after_ms or NO_SHARD_RETRY_MS,
            nothing_done=True,
        )

    def none_served(self, shard_ids: Sequence[int]) -> UnavailableError:
        """Return the error of a call for several shards that this host does not own now."""
        first = self.not_served(shard_ids[0])
        if len(shard_ids) == 1:
            return first
        return UnavailableError(
            f"{shards_named(shard_ids)} are not served by this host now; of the first: {first.message}",
            retry_after_ms=first.retry_after_ms,
            nothing_done=True,
        )

    def check_healthy(self, shard_id: int) -> None:
        """Raise UnavailableError while the shard's breaker is open, because a read must not wait for a sick server."""
        health = self.writers[shard_id].health
        if not health.healthy:
            raise UnavailableError(
                f"shard {shard_id} is sick, {health.reason}: nothing was done, try again",
                retry_after_ms=limits.SICK_RETRY_MS,
                nothing_done=True,
            )

    @property
    def owns_any(self) -> bool:
        return any(writer.shard is not None for writer in self.writers.values())

    def check_owns_any(self) -> None:
        """Raise UnavailableError if this host owns no shard, as its empty answer would look like an empty queue."""
        if not self.owns_any:
            raise UnavailableError(
                "this host owns no shard now, it is a standby or has lost them: nothing was done, ask another host",
                retry_after_ms=NO_SHARD_RETRY_MS,
                nothing_done=True,
            )
