"""Slots as all-knowing eyes see them: one table for all, and no item with an id where its slot does not lead to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from foqs.contract.requests import NewItem
from foqs.host.admission.placement import Placement
from foqs.host.registry.slot_moves import SlotMover
from foqs.model import limits
from foqs.model.calls import PositionErrors
from foqs.model.namespace import DedupScope, DedupWhenAway, Namespace, NamespaceSettings
from foqs.model.seen import slot_of_digest
from foqs.model.slots import NO_SLOTS, SLOTS_COUNT, SlotMove, SlotTable, slot_of
from foqs.shard.writer.shard_writer import ShardWriter
from foqs.testing.fake_server import Script
from tests.histories.history import uid_of
from tests.sim.gates import standing_gates
from tests.sim.serials import SERIAL_NAMESPACE

if TYPE_CHECKING:
    from tests.sim.host import SimHost
    from tests.sim.world import World

_SETTLED_S_MAX = 30.0
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
        self._kept: set[int] = set()
        """The versions of tables of which a shard has had a copy."""
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
        self.move_chance = random.Random(f"moves {world.seed}")

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

    def used(self) -> list[int]:
        """The slots of ids of all namespaces that there are."""
        found: dict[int, None] = {}
        for namespace in self._world.meta.tables.namespaces.values():
            first = slot_of(namespace.name, "", 1)
            found |= dict.fromkeys([(first + at) % SLOTS_COUNT for at in range(namespace.settings.key_spread)])
        if self._world.serials.is_there:
            found |= dict.fromkeys(self._world.serials.slots)
        return list(found)

    def some_settings(self) -> NamespaceSettings:
        """Of a namespace that the operator creates."""
        chance = self._spreads
        settings = NamespaceSettings(
            key_spread=chance.choice([1, 2, 4]),
            dedup_scope=chance.choice(list(DedupScope)),
            dedup_when_away=DedupWhenAway.REFUSE
            if self._world.profile.is_cluster
            else chance.choice(list(DedupWhenAway)),
        )
        return self._world.tiers.drawn(settings)

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

    def has(self, shard_id: int, slot: int) -> bool:
        """Whether the shard may take ids of the slot, as its own database has it: no other may then."""
        tables = self._world.servers[shard_id].tables
        if not tables.slots.version or tables.slots.shards[slot] != shard_id:
            return False
        return tables.arrival is None or slot not in tables.arrival.slots

    def _slots_of(self, shard_id: int) -> set[int]:
        """Those of which the shard may take ids."""
        tables = self._world.servers[shard_id].tables
        if not tables.slots.version:
            return set()
        slots = {slot for slot, other in enumerate(tables.slots.shards) if other == shard_id}
        return slots if tables.arrival is None else slots.difference(tables.arrival.slots)

    def slots_moved(self, shard_id: int, script: Script) -> None:
        """A move has come a step further: no slot has two shards, and who takes ids knows all that there are."""
        world, changes = self._world, script.slot_changes
        assert changes is not None
        kept = changes.kept
        if kept is not None and kept.version not in self._by_version:
            before = self.table
            changed = [slot for slot in range(SLOTS_COUNT) if kept.shards[slot] != before.shards[slot]]
            if kept.version != before.version + 1 or {before.shards[slot] for slot in changed} != {shard_id}:
                world.complain(f"shard {shard_id} gives slots {changed} with version {kept.version} of the table")
            self._by_version[kept.version] = kept.shards
            world.counts["moves of slots that were given"] += 1
        if changes.has_arrived:
            world.counts["moves of slots that ended"] += 1
            self._check_ids(shard_id)
        taken: set[int] = set()
        for slots in map(self._slots_of, world.servers):
            if not taken.isdisjoint(slots):
                slot = min(taken.intersection(slots))
                having = [other for other in world.servers if self.has(other, slot)]
                world.complain(f"P13: shards {having} take ids of slot {slot}")
                return
            taken |= slots

    def _check_ids(self, shard_id: int) -> None:
        """S1: what any shard knows of a slot that has come is known there, but for what had to be forgotten on the way.

        The slot may have been on a third shard before, which forgot what the first one has still.
        """
        servers = self._world.servers
        mine = servers[shard_id].tables
        for other in servers:
            if other == shard_id:
                continue
            tables = servers[other].tables
            for namespace in {namespace for namespace, _ in tables.seen}:
                if f"r{namespace}" in self._world.aliases:
                    continue  # It has another name now, by which its old ids have other slots: nobody asks for them.
                rows = mine.seen_rows(namespace, 0, limits.NEVER_MS)
                ways = [server.tables for at, server in servers.items() if at != other]
                on_the_way = [way.seen_rows(namespace, 0, limits.NEVER_MS) for way in ways]
                if any(some and some[0].first for some in on_the_way):
                    continue
                known = {digest for row in rows for digest in row.digests}
                for row in tables.seen_rows(namespace, 0, limits.NEVER_MS):
                    for digest, item in zip(row.digests, row.items, strict=True):
                        slot = slot_of_digest(digest)
                        if item[0] == other and self.has(shard_id, slot) and digest not in known:
                            what = f"the id of {item} in slot {slot} of shard {shard_id}"
                            self._world.complain(f"S1: shard {shard_id} does not know {what}")
                            return

    def leads_to(self, namespace_name: str, dedup_id: str, key_spread: int) -> int:
        """The shard, as docs/other-languages.md tells clients to find it."""
        slot = (crc32(namespace_name.encode()) + crc32(dedup_id.encode()) % key_spread) % 1024
        return self.table.shards[slot]

    def placed(
        self,
        is_served: Callable[[int], bool],
        namespace: Namespace,
        news: Sequence[NewItem],
        anywhere: Collection[int],
        errors: PositionErrors,
    ) -> None:
        """A host has decided where the items with ids of a call go. `is_served` says of a shard whether it could."""
        for position in [*anywhere, *errors]:
            dedup_id, uid = news[position].dedup_id or "", uid_of(news[position].payload or b"")
            slot = slot_of(namespace.name, dedup_id, namespace.settings.key_spread)
            shard_id = self.leads_to(namespace.name, dedup_id, namespace.settings.key_spread)
            if is_served(shard_id) and self.has(shard_id, slot):
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
        firsts: dict[str, int] = {}
        for key, uid in sorted(uids.items()):
            firsts.setdefault(uid, key)  # Of an item that has copies in groups, the first one stands for all.
        with_ids = {key for uid, key in firsts.items() if uid in world.dedup_ids and uid not in self.accepted}
        if script.slot_changes is not None:
            self.slots_moved(shard_id, script)
        # An operator's order to make ids free writes them without an item.
        rows = [row for row in script.seen_new if row.shard_ids is None and any(row.keys)]
        noted = [key for row in rows for key in row.keys]
        if len(noted) != len(with_ids) or with_ids != set(noted):
            world.complain(f"P13: items {with_ids} with dedup ids were written, and the ids of items {noted}")
            return
        for row in rows:
            key_spread = self.settings[row.namespace].key_spread
            for key in row.keys:
                uid = uids[key]
                slot = slot_of(uid.partition(":")[0], world.dedup_ids[uid], key_spread)
                if uid.startswith(f"{SERIAL_NAMESPACE}:"):
                    continue  # Its slot is that of the topic (tests.sim.serials).
                if not self.has(shard_id, slot):
                    right = self.leads_to(uid.partition(":")[0], world.dedup_ids[uid], key_spread)
                    world.complain(f"P13: {uid} with the id {world.dedup_ids[uid]} is on shard {shard_id}, not {right}")

    def look(self) -> None:
        """At every copy that there is."""
        world = self._world
        self.saw(world.meta.tables.slots, "the meta database")
        for shard_id, server in world.servers.items():
            self.saw(server.tables.slots, f"shard {shard_id}")
            self._kept.add(server.tables.slots.version)
        for host in world.hosts:
            self.saw(host.host._slots.table, host.name)

    def _forget_unused(self) -> None:
        """A table that no shard has kept led to nothing: it may be gone with the last host that knew it.

        Meta was lost before the shards had their copies, and did not come back before that host ended.
        """
        world = self._world
        having = [world.meta.tables.slots, *[host.host._slots.table for host in world.hosts]]
        having += [server.tables.slots for server in world.servers.values()]
        newest = max(table.version for table in having)
        for version in [version for version in self._by_version if version > newest]:
            if version not in self._kept:
                del self._by_version[version]

    async def settled(self, host: SimHost) -> None:
        """Return when all have the same table, as they should soon after all is well."""
        self.look()
        self._forget_unused()
        loop = self._world.loop
        until_s = loop.time() + _SETTLED_S_MAX
        while problems := list(self._problems(host)):
            if loop.time() > until_s:
                self._world.complain("; ".join(problems))
                return
            await asyncio.sleep(0.05)

    def _problems(self, host: SimHost) -> Iterator[str]:
        table, tables = self.table, self._world.meta.tables
        if tables.slot_move is not None:
            yield f"the meta database has {tables.slot_move}, which should have ended"
        yield from standing_gates(self._world)
        if tables.slots != table:
            yield f"the meta database has slot table {tables.slots.version}, not {table.version}"
        if host.host._slots.table != table:
            yield f"{host.name} goes by slot table {host.host._slots.table.version}, not {table.version}"
        for shard_id, server in self._world.servers.items():
            if server.tables.arrival is not None:
                yield f"shard {shard_id} waits for slots: {server.tables.arrival}"
            if server.tables.slots != table:
                yield f"shard {shard_id} has slot table {server.tables.slots.version}, not {table.version}"


def checked_placement(world_of: Callable[[], World]) -> type[Placement]:
    """The placement, checked at every call with ids."""

    class CheckedPlacement(Placement):
        def place_ids(
            self,
            namespace: Namespace,
            news: Sequence[NewItem],
            positions: Sequence[int],
            errors: PositionErrors,
            away: Collection[int] = (),
        ) -> tuple[dict[ShardWriter, list[int]], list[int]]:
            placed, anywhere = super().place_ids(namespace, news, positions, errors, away)
            slots = world_of().slots
            slots.placed(self._is_served, namespace, news, anywhere, errors)
            # A host that accepted them without their ids had no room for them, and handed them on.
            slots.accepted -= {uid_of(news[at].payload or b"") for some in placed.values() for at in some}
            return placed, anywhere

        def _is_served(self, shard_id: int) -> bool:
            writer = self._writers.get(shard_id)
            shard = None if writer is None else writer.shard
            world = world_of()
            if shard is None or shard_id in self._sick or self._slots.table != world.slots.table:
                return False
            # Its owner may not know yet that its transaction is committed.
            is_known = self._slots.kept_by(shard) == world.servers[shard_id].tables.slots
            return is_known and self._slots.keeps(shard)

    return CheckedPlacement


def restless_mover(world_of: Callable[[], World]) -> type[SlotMover]:
    """Slots of the namespaces that clients use go to and fro while there is load; all come to rest afterwards."""

    class RestlessMover(SlotMover):
        def _next(self, serving: Collection[int], draining: Collection[int]) -> SlotMove | None:
            world, table = world_of(), self._slots.table
            if world.loop.time() >= world.profile.load_s or len(serving) < 2 or not table.version:
                return super()._next(serving, draining)
            chance = world.slots.move_chance
            busy = self._busy()
            wanted = [slot for slot in world.slots.used() if table.shards[slot] in serving and slot not in busy]
            if not wanted:
                return None
            giver = table.shards[chance.choice(wanted)]
            taker = chance.choice([shard_id for shard_id in serving if shard_id != giver])
            slots = [slot for slot in wanted if table.shards[slot] == giver and chance.random() < 0.8]
            return SlotMove(table.version + 1, giver, taker, tuple(slots)) if slots else None

    return RestlessMover
