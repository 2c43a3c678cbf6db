"""A shard's server as dictionaries, with the transactions, locks and losses of a real one.

It does the work of foqs.storage.shard.shard_store on tables in memory instead of SQL: the same parts in the same order,
the same errors, the same knowledge after a lost answer. `Faults` decides the faults; by default no fault occurs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from foqs.model import limits
from foqs.model.calls import NO_CONTENT
from foqs.model.copy_steps import CopyKey, CopyStep
from foqs.model.held import HeldChanges
from foqs.model.item import ShardItem
from foqs.model.seen import BLOCK_IDS
from foqs.model.seen_image import ImageKey
from foqs.model.serial import SERIAL_DUE_AT
from foqs.model.slot_changes import SlotChanges
from foqs.shard.port import (
    TIMER_LANE,
    FetchedRow,
    ItemRow,
    OwnershipLostError,
    Refill,
    Rewrite,
    SeenIds,
    SeenPart,
    SessionLostError,
    StoredClaim,
    Transaction,
    TransactionFailedError,
    TransactionResult,
)
from foqs.storage.schema.item_columns import placed_row
from foqs.storage.sessions import whole_reads
from foqs.storage.shard.formats import pack_seen, unpack_items
from foqs.storage.shard.packs.pack import PackPlan, Tombstone
from foqs.testing.fake_rows import fetched_row, new_row, rewritten_row, without_content
from foqs.testing.fake_tables import FakeServerError, Tables, Writer, require
from foqs.testing.short_reads import ReadCut

Entries = list[tuple[int, int]]


class Fate(Enum):
    """The fate of one transaction, or of another statement as far as it can have one."""

    DONE = "done"
    FAILED = "failed"
    """A statement fails, everything is rolled back, and the session continues."""
    DEADLOCK = "deadlock"
    """The same as FAILED, to resolve a deadlock."""
    READ_ONLY = "read only"
    """The same as FAILED, because the server accepts no writes."""
    LOST_BEFORE = "lost before"
    """The session dies before COMMIT arrives."""
    LOST_AFTER = "lost after"
    """The session dies after COMMIT, and the answer is lost."""
    LATE = "late"
    """The client gives up. The server continues, and commits some time later."""


class Faults:
    """Never injects a fault."""

    def fate(self) -> Fate:
        return Fate.DONE

    def later(self, work: Callable[[], None]) -> None:
        """Call `work` some time later."""
        raise NotImplementedError


@dataclass(slots=True)
class FakeSession:
    number: int
    alive: bool = True


@dataclass(slots=True)
class Script:
    """A transaction as it was sent. The host cannot change it afterwards."""

    epoch: int
    topics_gone: list[int]
    topics_new: list[tuple[int, int, bytes]]
    namespaces_new: list[tuple[int, bytes]]
    inserts: list[ItemRow]
    promoted: list[ItemRow]
    packs_new: list[tuple[int, bytes]]
    seen_new: list[SeenIds]
    seen_gone: list[tuple[int, int, int]]
    seen_over: list[int]
    seen_parts_new: list[SeenPart]
    seen_parts_gone: list[tuple[ImageKey, int, int]]
    slot_changes: SlotChanges | None
    copies_ended: list[CopyKey]
    copies_begun: list[tuple[CopyKey, int]]
    copy_steps: list[CopyStep]
    held: HeldChanges | None
    claims: list[StoredClaim]
    claims_rewritten: list[tuple[int, Entries]]
    rewrites: list[Rewrite]
    wakes: list[int]
    wakes_in_place: list[int]
    deletes: list[int]
    tombstone: Tombstone | None
    tombstones_gone: list[int]
    packs_gone: list[int]
    claims_gone: list[int]
    look_ups: list[int]
    look_ups_with_payload: bool
    mark: Writer

    @property
    def rows_new(self) -> list[ItemRow]:
        """The new rows of the shard, packed or not."""
        return self.inserts + [row for _, contents in self.packs_new for row in unpack_items(contents)]


class FakeServer:
    """One shard's server. `clock` is its clock in milliseconds.

    If it is `strict`, a change of a missing row is a defect of the host. Otherwise the server refuses the transaction.
    """

    def __init__(
        self, shard_id: int, clock: Callable[[], int], faults: Faults | None = None, *, strict: bool = False
    ) -> None:
        self.shard_id = shard_id
        self.name = f"server of shard {shard_id}"
        """The server's name. A copy of the database is on a server of another name."""
        self.strict = strict
        self.clock = clock
        self.faults = faults or Faults()
        self.tables = Tables()
        self.up = True
        self.frozen = False
        self.reads = ReadCut()
        self.problems: list[str] = []
        """The reasons that it could lose acknowledged commits."""
        self.on_commit: Callable[[Script], None] = lambda script: None
        self.on_nonsense: Callable[[FakeServerError], None] = lambda error: None
        self._sessions: dict[int, FakeSession] = {}
        self._last_session = 0
        self._locks: dict[str, int] = {}
        self._waiting: list[Callable[[], None]] = []

    def clone(self, name: str) -> FakeServer:
        """Another server with a copy of the committed tables, without sessions and locks."""
        clone = FakeServer(self.shard_id, self.clock, self.faults, strict=self.strict)
        clone.name, clone.tables = name, self.tables.copy()
        return clone

    # ---- faults ----

    def crash(self) -> None:
        """Drop sessions, their locks and open transactions. Committed rows stay."""
        self.up = False
        self.frozen = False
        for session in list(self._sessions.values()):
            self.end_session(session)
        self._waiting = []

    def restart(self) -> None:
        self.up = True

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        """Run the work that was sent while the server was frozen."""
        self.frozen = False
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            work()

    def kill_sessions(self) -> None:
        for session in list(self._sessions.values()):
            self.end_session(session)

    # ---- sessions ----

    def connect(self) -> FakeSession:
        if not self.up or self.frozen or self.reads.rows_max == 0:
            raise SessionLostError(f"shard {self.shard_id}: its server does not answer")
        self._last_session += 1
        session = self._sessions[self._last_session] = FakeSession(self._last_session)
        return session

    def end_session(self, session: FakeSession) -> None:
        session.alive = False
        self._sessions.pop(session.number, None)
        self._locks = {name: number for name, number in self._locks.items() if number != session.number}

    def touch(self, session: FakeSession | None) -> FakeSession:
        """Any statement. Raises SessionLostError."""
        if session is None or not session.alive or not self.up or self.frozen:
            raise SessionLostError(f"shard {self.shard_id}: the session is lost", nothing_done=True)
        return session

    def lock(self, session: FakeSession, name: str) -> int:
        """Take the named lock if it is free. Returns the number of the session that holds it."""
        return self._locks.setdefault(name, session.number)

    def kill(self, session_number: int) -> None:
        session = self._sessions.get(session_number)
        if session is not None:
            self.end_session(session)

    def on_thaw(self, work: Callable[[], None]) -> None:
        self._waiting.append(work)

    # ---- transactions ----

    def read(self, transaction: Transaction, plan: PackPlan) -> TransactionResult:
        """Do the refills and fetches of rows, before the first write. Raises ShortReadError."""
        result = TransactionResult(packed_count=plan.packed_count, promoted_count=len(plan.promoted))
        result.refilled = [self._refill(refill) for refill in transaction.refills]
        found = [row for key in plan.fetches if (row := self.tables.row(key)) is not None]
        fetched = {row.key: row for row in self.reads.some(found)}
        whole_reads.check_found("claimed items", plan.fetches, fetched)
        result.fetched = fetched
        result.read_count = sum(map(len, result.refilled)) + len(result.fetched)
        leave_unread(transaction, result, self.tables.items)
        for namespace, block in transaction.seen_reads:
            rows = self.reads.whole(self.tables.seen_rows(namespace, block * BLOCK_IDS, (block + 1) * BLOCK_IDS))
            if rows:
                result.seen[namespace, block] = rows
        if transaction.held is not None:
            result.held = self.tables.holders_of(transaction.held.reads, self.shard_id, self.reads)
        return result

    def commit(self, script: Script) -> dict[int, ItemRow]:
        """Commit all or nothing; returns the rows that were looked up. Raises OwnershipLostError, FakeServerError."""
        if self.tables.writer.epoch != script.epoch:
            raise OwnershipLostError(f"shard {self.shard_id} has another epoch than {script.epoch}")
        before = None if self.strict else self.tables.copy()
        try:
            self._write(script)
        except OwnershipLostError:
            assert before is not None
            self.tables = before
            raise
        except FakeServerError as error:
            if before is not None:
                self.tables = before
                raise TransactionFailedError(str(error)) from error
            self.on_nonsense(error)
            raise
        rows = {key: self.tables.row(key) for key in script.look_ups}
        looked_up = {key: row for key, row in rows.items() if row is not None}
        if not script.look_ups_with_payload:
            looked_up = {key: without_content(row) for key, row in looked_up.items()}
        self.on_commit(script)
        return looked_up

    def _write(self, script: Script) -> None:
        tables = self.tables
        for number in script.topics_gone:
            if self._is_there(number in tables.topics, f"topic {number} goes"):
                del tables.topics[number]
        for number, name in script.namespaces_new:
            require(number not in tables.namespaces, f"namespace {number} is stored twice")
            tables.namespaces[number] = name
        for number, namespace, name in script.topics_new:
            require((namespace, name) not in tables.topics.values(), f"topic {name!r} is stored twice")
            require(number not in tables.topics, f"topic number {number} is used twice")
            tables.topics[number] = (namespace, name)
        self._write_packs(script)
        for row in [*script.inserts, *script.promoted]:
            require(row.key not in tables.items, f"key {row.key:x} is inserted twice")
            tables.put(row)
        self._write_seen(script)
        if script.held is not None:
            tables.write_held(script.held, self.shard_id)
        if script.slot_changes is not None:
            self._write_slots(script.slot_changes)
        tables.write_copies(script.copies_ended, script.copies_begun, script.copy_steps)
        for claim in script.claims:
            require(claim.id not in tables.claims, f"claim {claim.id:x} is inserted twice")
            tables.claims[claim.id] = claim
        for claim_id, entries in script.claims_rewritten:
            if self._is_there(claim_id in tables.claims, f"claim {claim_id:x} is rewritten"):
                tables.claims[claim_id] = tables.claims[claim_id]._replace(entries=entries)
        for rewrite in script.rewrites:
            if self._is_there(tables.row(rewrite.key) is not None, f"row {rewrite.key:x} is rewritten"):
                row = tables.items[rewrite.key]
                is_there = (row.lane, row.urgency, row.due_at) == (rewrite.lane, rewrite.urgency, rewrite.due_at)
                require(
                    is_there or not rewrite.is_in_place or not self.strict, f"row {rewrite.key:x} is not in its place"
                )
                tables.put(rewritten_row(row, rewrite))
        for key in (*script.wakes, *script.wakes_in_place):
            if self._is_there(tables.row(key) is not None, f"row {key:x} is woken"):
                row = tables.items[key]
                require(row.lane == TIMER_LANE or not self.strict, f"row {key:x} is woken and is not delayed")
                due_at = SERIAL_DUE_AT if key in script.wakes_in_place else row.due_at
                tables.put(row._replace(lane=row.topic, urgency=row.ready_urgency, due_at=due_at))
        for key in script.deletes:
            if self._is_there(tables.row(key) is not None, f"row {key:x} is deleted"):
                tables.delete(key)
        for claim_id in script.claims_gone:
            if self._is_there(claim_id in tables.claims, f"claim {claim_id:x} goes"):
                del tables.claims[claim_id]
        script.mark.owner, script.mark.session_id = tables.writer.owner, tables.writer.session_id
        tables.writer = script.mark

    def _write_packs(self, script: Script) -> None:
        """Make all changes of packs. Promoted items leave their pack here, and get their rows afterwards."""
        tables, packs = self.tables, self.tables.packs
        left = [key for key, pack_id in tables.packed.items() if pack_id in script.packs_gone]
        if script.tombstone is not None:
            require(script.tombstone.id not in tables.tombstones, f"{script.tombstone} is inserted twice")
            tables.tombstones[script.tombstone.id] = script.tombstone.keys
            left += script.tombstone.keys
        for key in left:
            if self._is_there(key in tables.packed, f"{key:x} leaves a pack"):
                del tables.packed[key]
                tables.delete(key)
        for pack_id, contents in script.packs_new:
            require(pack_id not in packs, f"pack {pack_id:x} is inserted twice")
            packs[pack_id] = contents
            for row in unpack_items(contents):
                require(row.key not in tables.items, f"key {row.key:x} is packed twice")
                tables.put(row)
                tables.packed[row.key] = pack_id
        for pack_id in script.packs_gone:
            if self._is_there(pack_id in packs, f"pack {pack_id:x} goes"):
                del packs[pack_id]
        gone = [
            at for at in script.tombstones_gone if self._is_there(at in tables.tombstones, f"tombstone {at:x} goes")
        ]
        require(not tables.needs(gone), "an item comes back to its pack")
        for tombstone_id in gone:
            del tables.tombstones[tombstone_id]

    def _write_seen(self, script: Script) -> None:
        seen = self.tables.seen
        for row in script.seen_new:
            last = len(row.digests) - 1
            require(
                (row.namespace, row.first) not in seen, f"row {row.first} of namespace {row.namespace} is seen twice"
            )
            require(
                row.first // BLOCK_IDS == (row.first + last) // BLOCK_IDS,
                f"a row of seen ids at {row.first} crosses blocks",
            )
            shard_ids = row.shard_ids or [self.shard_id] * len(row.keys)
            entries = pack_seen(row.digests, shard_ids, row.keys, row.copies_counts)
            seen[row.namespace, row.first] = (row.at_ms, entries)
        for namespace, first, end in script.seen_gone:
            for at in list(seen.irange((namespace, first), (namespace, end), inclusive=(True, False))):
                del seen[at]
        for namespace in script.seen_over:
            self.tables.moved.pop(namespace, None)
        parts = self.tables.seen_parts
        for key, first, end in script.seen_parts_gone:
            for number in range(first, end):
                if self._is_there((key, number) in parts, f"part {number} of {key} goes"):
                    del parts[key, number]
        for key, number, body in script.seen_parts_new:
            require((key, number) not in parts, f"part {number} of {key} is inserted twice")
            parts[key, number] = body

    def _write_slots(self, changes: SlotChanges) -> None:
        tables = self.tables
        if changes.arriving is not None:
            known = tables.arrival
            require(
                known is None or known.is_same(changes.arriving),
                f"{changes.arriving} begins while slots are on their way",
            )
            tables.arrival = changes.arriving
        if changes.appended is not None:
            appended, before = changes.appended, tables.moved.get(changes.appended.namespace)
            if before is not None and before.version == appended.version:
                appended = appended._replace(first=before.first)
            tables.moved[appended.namespace] = appended
        if changes.kept is not None and changes.kept.version > tables.slots.version:
            tables.slots = changes.kept
        if changes.has_arrived:
            tables.arrival = None

    def _is_there(self, there: bool, change: str) -> bool:
        require(there or not self.strict, f"{change} and is not there")
        if not there:
            raise OwnershipLostError(f"shard {self.shard_id}: its database does not have all rows: {change}")
        return there

    def _refill(self, refill: Refill) -> list[tuple[int, int, int, int, int]]:
        found = []
        for urgency, due_at, key in self.tables.after(refill.lane, refill.edge, refill.limit):
            row = self.tables.items[key]
            topic, place = (row.topic, row.ready_urgency) if refill.lane == TIMER_LANE else (0, 0)
            found.append((urgency, due_at, key, topic, place))
        return self.reads.whole(found)


def leave_unread(transaction: Transaction, result: TransactionResult, items: Mapping[int, ItemRow]) -> None:
    """Leave out the contents for refills and claims beyond the bytes that a transaction can read."""
    refills = zip(transaction.refills, result.refilled, strict=True)
    keys = [[sort_key[2] for sort_key in found] for refill, found in refills if refill.with_payload]
    result.read_ahead = _first_contents([fetched_row(items[key]) for some in keys for key in some], result.unread)
    result.fetched = _first_contents([fetched_row(items[key]) for key in sorted(result.fetched)], result.unread)


def _first_contents(rows: list[FetchedRow], unread: set[int]) -> dict[int, FetchedRow]:
    size_bytes = 0
    kept = {}
    for row in rows:
        size_bytes += row.content.size_bytes
        if size_bytes > limits.TRANSACTION_CONTENTS_BYTES_MAX:
            unread.add(row.key)
        kept[row.key] = row._replace(content=NO_CONTENT) if row.key in unread else row
    return kept


def make_script(transaction: Transaction, plan: PackPlan, result: TransactionResult, epoch: int) -> Script:
    def entries(items: list[ShardItem]) -> Entries:
        return [(key, (result.fetched.get(key) or item).deliveries + 1) for item in items for key in item.keys]

    return Script(
        epoch=epoch,
        topics_gone=list(transaction.topics_gone),
        topics_new=[(topic.number, topic.namespace, topic.name.encode()) for topic in transaction.topics_new],
        namespaces_new=list(transaction.namespaces_new),
        inserts=[*map(new_row, plan.inserts), *map(placed_row, transaction.inserts_placed)],
        promoted=list(plan.promoted),
        packs_new=[(pack.id, pack.contents) for pack in plan.packs_new],
        seen_new=list(transaction.seen_new),
        seen_gone=list(transaction.seen_gone),
        seen_over=list(transaction.seen_over),
        seen_parts_new=list(transaction.seen_parts_new),
        seen_parts_gone=list(transaction.seen_parts_gone),
        slot_changes=transaction.slot_changes,
        copies_ended=list(transaction.copies_ended),
        copies_begun=list(transaction.copies_begun),
        copy_steps=list(transaction.copy_steps),
        held=transaction.held,
        claims=[
            StoredClaim(claim.id, claim.due_at, claim.is_ahead, entries(list(claim.items)))
            for claim in transaction.claims
        ],
        claims_rewritten=[(claim.id, entries(list(claim.items))) for claim in transaction.claims_rewritten],
        rewrites=sorted(plan.rewrites, key=lambda rewrite: rewrite.key),
        wakes=list(transaction.wakes),
        wakes_in_place=list(transaction.wakes_in_place),
        deletes=list(plan.deletes),
        tombstone=plan.tombstone,
        tombstones_gone=list(plan.tombstones_gone),
        packs_gone=list(plan.packs_gone),
        claims_gone=list(transaction.claims_gone),
        look_ups=list(plan.look_ups),
        look_ups_with_payload=transaction.look_ups_with_payload,
        mark=Writer(
            epoch, "", transaction.number, transaction.delay_checkpoint, transaction.claim_checkpoint,
            transaction.topic_number_last, transaction.steady_ms,
        ),
    )  # fmt: skip
