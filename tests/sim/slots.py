"""Slots as all-knowing eyes see them: one table for all, and no item with an id where its slot does not lead to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from foqs.host.enqueues import Placement
from foqs.model.calls import NewItemFields, PositionErrors
from foqs.model.namespace import DedupScope, DedupWhenAway, Namespace, NamespaceSettings
from foqs.model.slots import NO_SLOTS, SLOTS_COUNT, SlotTable
from foqs.shard.writer.shard_writer import ShardWriter
from foqs.testing.fake_server import Script
from tests.histories.history import uid_of

if TYPE_CHECKING:
    from tests.sim.host import SimHost
    from tests.sim.world import World

_SETTLED_S_MAX = 10.0
"""A host looks at its table and at all copies every 0.25 s there (tests.sim.chance)."""


class SlotWatch:
    """Knows the only table that there may be, and which items may be on a shard that it does not lead to.

    In some seeds the cluster has run before: its shards have copies of a table that nobody would make now, and the
    meta database has it, or an older one, or none.
    """

    def __init__(self, world: World) -> None:
        self.accepted: set[str] = set()
        """By uid: items whose namespace takes them without their ids while the shard of their slot is away."""
        self.settings: dict[int, NamespaceSettings] = {}
        """By number of a namespace: what it was created with."""
        self._world = world
        self._by_version: dict[int, tuple[int, ...]] = {}
        chance = random.Random(f"slots {world.seed}")
        self.key_spread = chance.choice([1, 2, 4])
        self.when_away = chance.choice([DedupWhenAway.REFUSE, DedupWhenAway.REFUSE, DedupWhenAway.ACCEPT])
        if world.profile.is_cluster:
            # A client that goes on to another host does not say that the first one would have taken its item.
            self.when_away = DedupWhenAway.REFUSE
        self.in_meta = self._make_past(chance) if chance.random() < 0.6 else NO_SLOTS
        self.readable_from_s = chance.choice([0.0, 0.0, 0.6])
        """Before this time no copy can be read."""
        self._spreads = chance

    def _make_past(self, chance: random.Random) -> SlotTable:
        """What the meta database has of it."""
        shard_ids = list(self._world.servers)
        versions = chance.choice([1, 2])
        for version in range(1, versions + 1):
            self._by_version[version] = tuple(chance.choices(shard_ids, k=SLOTS_COUNT))
        for server in self._world.servers.values():
            server.tables.slots = self.table
        known = chance.choice([versions, versions - 1, 0])
        return SlotTable(known, self._by_version[known]) if known else NO_SLOTS

    @property
    def table(self) -> SlotTable:
        """The one that holds: of the highest version."""
        version = max(self._by_version, default=0)
        return SlotTable(version, self._by_version[version]) if version else NO_SLOTS

    def some_settings(self) -> NamespaceSettings:
        """Of a namespace that the operator creates."""
        chance = self._spreads
        return NamespaceSettings(
            key_spread=chance.choice([1, 2, 4]),
            dedup_scope=chance.choice(list(DedupScope)),
            dedup_when_away=DedupWhenAway.REFUSE
            if self._world.profile.is_cluster
            else chance.choice(list(DedupWhenAway)),
        )

    # ---- what is seen ----

    def created(self, namespace: Namespace) -> None:
        self.settings[namespace.number] = namespace.settings

    def saw(self, table: SlotTable, where: str) -> None:
        """The first table may come at any time; after it no other."""
        if not table.version:
            return
        known = self._by_version.get(table.version)
        if known is None and self._by_version:
            self._world.complain(f"{where} has a slot table of version {table.version}, and there was one before")
        elif known is not None and known != table.shards:
            self._world.complain(f"{where} has another slot table of version {table.version}")
        else:
            self._by_version[table.version] = table.shards

    def leads_to(self, namespace_name: str, dedup_id: str, key_spread: int) -> int:
        """The shard, as docs/other-languages.md tells clients to find it."""
        slot = (crc32(namespace_name.encode()) + crc32(dedup_id.encode()) % key_spread) % 1024
        return self.table.shards[slot]

    def placed(
        self,
        is_served: Callable[[int], bool],
        namespace: Namespace,
        news: Sequence[NewItemFields],
        anywhere: Collection[int],
        errors: PositionErrors,
    ) -> None:
        """A host has decided where the items with ids of a call go. `is_served` says of a shard whether it could."""
        for position in [*anywhere, *errors]:
            dedup_id, uid = news[position].dedup_id or "", uid_of(news[position].payload or b"")
            shard_id = self.leads_to(namespace.name, dedup_id, namespace.settings.key_spread)
            if is_served(shard_id):
                self._world.complain(f"P13: {uid} with id {dedup_id} does not go to shard {shard_id}, which is there")
            if position in errors:
                self._world.counts["items with ids refused while their shard was away"] += 1
            elif namespace.settings.dedup_when_away is DedupWhenAway.ACCEPT:
                self._world.counts["items with ids accepted while their shard was away"] += 1
                self.accepted.add(uid)

    def committed(self, shard_id: int, script: Script) -> None:
        """S1, an item and its dedup id are written together, and both where the slot of the id leads."""
        world = self._world
        uids = {row.key: uid_of(row.content.payload) for row in script.rows_new}
        with_ids = {key for key, uid in uids.items() if uid in world.dedup_ids and uid not in self.accepted}
        noted = [key for row in script.seen_new for key in row.keys]
        if len(noted) != len(with_ids) or with_ids != set(noted):
            world.complain(f"P13: items {with_ids} with dedup ids were written, and the ids of items {noted}")
            return
        if noted and world.servers[shard_id].tables.slots != self.table:
            world.complain(f"P13: shard {shard_id} takes the ids of {noted} and has no copy of the slot table")
            return
        for row in script.seen_new:
            key_spread = self.settings[row.namespace].key_spread
            for key in row.keys:
                uid = uids[key]
                right = self.leads_to(uid.partition(":")[0], world.dedup_ids[uid], key_spread)
                if right != shard_id:
                    world.complain(f"P13: {uid} with the id {world.dedup_ids[uid]} is on shard {shard_id}, not {right}")

    def look(self) -> None:
        """At every copy that there is."""
        world = self._world
        self.saw(world.meta.tables.slots, "the meta database")
        for shard_id, server in world.servers.items():
            self.saw(server.tables.slots, f"shard {shard_id}")
        for host in world.hosts:
            self.saw(host.host._slots.table, host.name)

    async def settled(self, host: SimHost) -> None:
        """Return when all have the same table, as they should soon after all is well."""
        loop = self._world.loop
        until_s = loop.time() + _SETTLED_S_MAX
        while problems := list(self._problems(host)):
            if loop.time() > until_s:
                self._world.complain("; ".join(problems))
                return
            await asyncio.sleep(0.05)

    def _problems(self, host: SimHost) -> Iterator[str]:
        table, tables = self.table, self._world.meta.tables
        if tables.slots != table:
            yield f"the meta database has slot table {tables.slots.version}, not {table.version}"
        if host.host._slots.table != table:
            yield f"{host.name} goes by slot table {host.host._slots.table.version}, not {table.version}"
        for shard_id, server in self._world.servers.items():
            if server.tables.slots != table:
                yield f"shard {shard_id} has slot table {server.tables.slots.version}, not {table.version}"


def checked_placement(world_of: Callable[[], World]) -> type[Placement]:
    """The placement, checked at every call with ids."""

    class CheckedPlacement(Placement):
        def place_ids(
            self, namespace: Namespace, news: Sequence[NewItemFields], positions: Sequence[int], errors: PositionErrors
        ) -> tuple[dict[ShardWriter, Sequence[int]], list[int]]:
            placed, anywhere = super().place_ids(namespace, news, positions, errors)
            slots = world_of().slots
            slots.placed(self._is_served, namespace, news, anywhere, errors)
            # A host that accepted them without their ids had no room for them, and handed them on.
            slots.accepted -= {uid_of(news[at].payload or b"") for some in placed.values() for at in some}
            return placed, anywhere

        def _is_served(self, shard_id: int) -> bool:
            writer = self._writers.get(shard_id)
            shard = None if writer is None else writer.shard
            return shard is not None and shard_id not in self._sick and self._slots.keeps(shard)

    return CheckedPlacement
