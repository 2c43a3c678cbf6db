"""Implements foqs.shard.port.Store, and the readers beside it, on a FakeServer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, NoReturn

from foqs.model import ids, limits, order
from foqs.model.cluster import ShardIdentity
from foqs.model.errors import UnavailableError
from foqs.model.seen_image import ImageKey
from foqs.model.shard_place import EpochAsk, EpochGiven, FoundShard, Tenure
from foqs.shard.port import (
    BeingTakenError,
    DeadlockError,
    LaneCounts,
    OwnedError,
    OwnershipLostError,
    ReadOnlyError,
    SeenDigests,
    SeenPart,
    SessionLostError,
    ShardImage,
    Transaction,
    TransactionFailedError,
    TransactionResult,
)
from foqs.storage.schema import statements as sql
from foqs.storage.sessions.whole_reads import ShortReadError
from foqs.storage.shard.identity import ClusterId, check_identity, confirm_identity
from foqs.storage.shard.packs.pack import PackPlan
from foqs.storage.shard.packs.pack_index import PackIndex, add_looked_up, add_packed
from foqs.testing.fake_rows import claimed_row
from foqs.testing.fake_server import FakeServer, FakeSession, Fate, make_script
from foqs.testing.fake_tables import Tables, Writer
from foqs.testing.short_reads import losing_session

_REFUSALS = {
    Fate.FAILED: TransactionFailedError,
    Fate.DEADLOCK: DeadlockError,
    Fate.READ_ONLY: ReadOnlyError,
}


class FakeStore:
    """Implements foqs.shard.port.Store on a FakeServer."""

    def __init__(
        self,
        server: FakeServer,
        lock_name: str,
        owner: str,
        take_epoch: Callable[[EpochAsk], EpochGiven],
        owner_is_dead: Callable[[str, int], bool],
        packs: PackIndex,
        cluster: ClusterId,
        network: Executor | None = None,
    ) -> None:
        """`packs` is shared by this store and the readers of the shard.

        `network` runs the requests to the server; None is the loop's own executor.
        """
        self._network = network
        self._server = server
        self._lock_name = lock_name
        self._owner = owner
        self._take_epoch = take_epoch
        self._owner_is_dead = owner_is_dead
        self._cluster = cluster
        self._new_identity: ShardIdentity | None = None
        """The identity that this store would write."""
        self.packs = packs
        self._result = TransactionResult()
        """The rows that the last transaction has read so far."""
        self._reopened_number = 0
        self._session: FakeSession | None = None
        self._lost_session_number = 0
        self._is_prepared = False
        """True if the session holds the lock for the next `open`."""
        self.epoch = 0

    def open(self, tenure: Tenure | None = None) -> ShardImage:
        steps = self.opening(tenure)
        while True:
            try:
                with losing_session(self._server.shard_id):
                    next(steps)
            except StopIteration as end:
                image: ShardImage = end.value
                return image

    def opening(self, tenure: Tenure | None) -> Generator[None, None, ShardImage]:
        """Like `open`, with a `yield` at each point where the server and other hosts can act in between."""
        self.packs.clear()
        is_prepared, self._is_prepared = self._is_prepared, False
        if not is_prepared:
            self._connect()
        try:
            self._take_lock(self._is_free_to_take)
            yield
            writer = self._writer()
            confirm_identity(self._rows, self._server.shard_id, self._cluster, writer.epoch)
            self._server.tables.identity = self._server.tables.identity or self._new_identity
            found, given = self._found(writer), None
            if tenure is not None and tenure.goes_on(found):
                self.epoch, last_key = tenure.epoch, tenure.last_key
            else:
                # The shard is possibly a replica that was behind, and the meta database a restored one.
                given = self._take_epoch(EpochAsk(found, max(writer.epoch, self.epoch)))
                self.epoch, last_key = given.epoch, given.epoch << ids.SEQUENCE_BITS
            yield
            self._put_name()
            yield
            self._server.touch(self._session)
            self._promote_all()
            yield
            self._server.touch(self._session)
            return replace(self._read_image(last_key), given=given, found=found)
        except BaseException:
            self.close()
            raise

    def _is_free_to_take(self, writer: Writer) -> bool:
        return writer.owner == self._owner or self._owner_is_dead(writer.owner, writer.epoch)

    def _put_name(self) -> None:
        writer = self._writer()
        if self.epoch < writer.epoch:
            raise OwnershipLostError(f"shard {self._server.shard_id} was taken by epoch {writer.epoch} meanwhile")
        fate = self._server.faults.fate()
        if fate in (Fate.LOST_BEFORE, Fate.LATE):
            self._lose("lost while it was opened")
        assert self._session is not None
        writer.epoch, writer.owner, writer.session_id = self.epoch, self._owner, self._session.number
        if fate is Fate.LOST_AFTER:
            self._lose("lost while it was opened")

    def _rows(self, statement: str, *arguments: Any) -> list[ShardIdentity]:
        """Run one of the two statements on the database's identity. They are committed before an epoch is taken."""
        if statement == sql.KEEP_IDENTITY:
            self._new_identity = ShardIdentity(*arguments)
        found = self._server.tables.identity or self._new_identity
        return self._server.reads.whole([found] if found is not None else [])

    def _promote_all(self) -> None:
        tables = self._server.tables
        self._server.reads.whole([*tables.tombstones.items()])
        self._server.reads.whole([*tables.packs.items()][:1])
        tables.promote_all()

    def wait_for_owner(self, *, stay: bool = False) -> bool:
        """Return at once, because the caller tries again soon. With `stay` the lock is kept if it is free."""
        if stay:
            self._connect()
            assert self._session is not None
            self._is_prepared = self._server.lock(self._session, self._lock_name) == self._session.number
            if not self._is_prepared:
                self.close()
        return self._is_prepared

    def retry_now(self) -> None:
        """Do nothing, because no call waits for long."""

    def sort_key_after(self, lane: int, edge: int, count: int) -> int | None:
        self._touch()
        with losing_session(self._server.shard_id):
            self._server.reads.whole(self._server.tables.after(lane, edge, count)[-1:])
        found = self._server.tables.after(lane, edge, count)
        return order.sort_key(*found[-1], self._server.shard_id) if len(found) == count else None

    def reopen(self) -> int:
        self._connect()
        try:
            self._last_number()
            try:
                self._take_lock(lambda writer: writer.epoch == self.epoch)
            except OwnershipLostError as error:
                raise SessionLostError(str(error)) from error
            number = self._reopened_number = self._last_number()
            assert self._session is not None
            self._server.tables.writer.session_id = self._session.number
            return number
        except BaseException:
            self.close()
            raise

    def renew_epoch(self) -> int:
        self._touch()
        self._last_number()
        found = self._found(self._writer())
        epoch = self._take_epoch(EpochAsk(found, self.epoch, is_renewal=True)).epoch
        self._last_number()
        if self._server.faults.fate() is Fate.LOST_BEFORE:
            self._lose("lost before its epoch was renewed")
        self._writer().epoch = epoch
        if self._server.faults.fate() is Fate.LOST_AFTER:
            self._lose("lost after its epoch was renewed")
        self.epoch = epoch
        return epoch

    def _last_number(self) -> int:
        writer = self._writer()
        if writer.epoch != self.epoch:
            raise OwnershipLostError(f"shard {self._server.shard_id} has epoch {writer.epoch} of {writer.owner!r}")
        return writer.transaction_number

    @property
    def server(self) -> str:
        return self._server.name

    def _found(self, writer: Writer) -> FoundShard:
        return FoundShard(self.server, writer.epoch, writer.owner, writer.transaction_number)

    def _writer(self) -> Writer:
        self._server.touch(self._session)
        return self._server.tables.writer

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._lost_session_number = session.number
            if self._server.frozen:
                self._server.on_thaw(lambda: self._server.end_session(session))
            else:
                self._server.end_session(session)

    def interrupt(self) -> None:
        if self._session is not None:
            self._server.end_session(self._session)

    def is_session_lost(self) -> bool:
        return self._session is None or not self._session.alive

    def check(self) -> list[str]:
        self._touch()
        return list(self._server.problems)

    async def now_ms(self) -> int:
        return await asyncio.get_running_loop().run_in_executor(self._network, self._now_ms)

    def _now_ms(self) -> int:
        self._touch()
        return self._server.clock()

    def outcome(self, transaction: Transaction) -> TransactionResult | None:
        plan = self.packs.plan(transaction)
        if self._reopened_number < transaction.number:
            self.packs.fail(plan)
            return None
        self.packs.commit(plan)
        return self._result

    def wants_transaction(self, steady_ms: int) -> bool:
        return self.packs.is_due(steady_ms)

    def rows_count(self, transaction: Transaction) -> int:
        return self.packs.plan(transaction).rows_count

    async def run(self, transaction: Transaction) -> TransactionResult:
        """Run the transaction. If it reads, any delay counts as slow reads."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        plan = self.packs.plan(transaction)
        try:
            result = await loop.run_in_executor(self._network, self._run, transaction, plan)
        except TransactionFailedError:
            self.packs.fail(plan)
            raise
        if transaction.refills or plan.fetches:
            result.read_us = round((loop.time() - began_s) * 1_000_000)
        return self._committed(transaction, plan, result)

    def run_at_once(self, transaction: Transaction) -> TransactionResult:
        """Do the same as `run` where no fault is expected, without an event loop."""
        plan = self.packs.plan(transaction)
        return self._committed(transaction, plan, self._run(transaction, plan))

    def _committed(self, transaction: Transaction, plan: PackPlan, result: TransactionResult) -> TransactionResult:
        self.packs.commit(plan)
        add_looked_up(self.packs, transaction, result)
        return result

    def _run(self, transaction: Transaction, plan: PackPlan) -> TransactionResult:
        server = self._server
        if server.frozen and self._session is not None and self._session.alive:
            return self._run_late(self._session, transaction, plan, server.on_thaw)
        session = server.touch(self._session)
        fate = server.faults.fate()
        if fate in _REFUSALS:
            raise _REFUSALS[fate](fate.value)
        result = self._read(transaction, plan)
        if fate is Fate.LOST_BEFORE:
            self._lose("lost before its commit")
        if fate is Fate.LATE:
            return self._run_late(session, transaction, plan, server.faults.later)
        looked_up = server.commit(make_script(transaction, plan, result, self.epoch))
        if fate is Fate.LOST_AFTER:
            self._lose("lost after its commit")
        if transaction.look_ups:
            with losing_session(server.shard_id):  # The commit has happened, as a new session will find.
                looked_up = {row.key: row for row in server.reads.whole([*looked_up.values()])}
        result.looked_up = looked_up
        return result

    def _read(self, transaction: Transaction, plan: PackPlan) -> TransactionResult:
        try:
            result = self._result = self._server.read(transaction, plan)
        except ShortReadError as error:
            raise OwnershipLostError(f"shard {self._server.shard_id}: {error.args[1]}") from error
        add_packed(self.packs, transaction, result)
        return result

    def _run_late(
        self,
        session: FakeSession,
        transaction: Transaction,
        plan: PackPlan,
        later: Callable[[Callable[[], None]], None],
    ) -> TransactionResult:
        """The client gives the session up. The server still has the session and its lock, and finishes the
        transaction.
        """
        server = self._server
        script = make_script(transaction, plan, self._read(transaction, plan), self.epoch)

        def finish() -> None:
            if session.alive:
                if server.frozen:
                    server.on_thaw(finish)
                    return
                server.commit(script)
                server.end_session(session)

        later(finish)
        self._lost_session_number = session.number
        self._session = None
        raise SessionLostError(f"shard {server.shard_id}: no answer in time")

    def _lose(self, reason: str) -> NoReturn:
        self.close()
        raise SessionLostError(f"shard {self._server.shard_id}: {reason}")

    def _touch(self) -> None:
        try:
            self._server.touch(self._session)
            if self._server.faults.fate() in (Fate.LOST_BEFORE, Fate.LOST_AFTER):
                raise SessionLostError(f"shard {self._server.shard_id}: lost")
        except SessionLostError:
            self.close()
            raise

    def _connect(self) -> None:
        self.close()
        self._new_identity = None
        self._session = self._server.connect()
        if self._server.problems:
            self.close()
            raise OwnershipLostError(f"shard {self._server.shard_id}: {'; '.join(self._server.problems)}")
        try:
            check_identity(self._server.tables.identity, ShardIdentity(self._cluster.known, self._server.shard_id))
        except OwnershipLostError:
            self.close()
            raise

    def _take_lock(self, may_put_out: Callable[[Writer], bool]) -> None:
        server, writer = self._server, self._writer()
        assert self._session is not None
        holder = server.lock(self._session, self._lock_name)
        if holder == self._session.number:
            return
        if not self._is_owners(holder, writer):
            raise BeingTakenError(f"shard {server.shard_id} is being taken over by session {holder}")
        if not may_put_out(writer):
            raise OwnedError(f"shard {server.shard_id} is owned by {writer.owner!r}")
        self._kill(holder)
        if server.lock(self._session, self._lock_name) != self._session.number:
            raise OwnershipLostError(f"shard {server.shard_id}: another host was faster")

    def _kill(self, session_number: int) -> None:
        self._server.kill(session_number)

    def _is_owners(self, session_number: int, writer: Writer) -> bool:
        is_mine = session_number == self._lost_session_number and writer.epoch == self.epoch
        return session_number == writer.session_id or is_mine

    def _read_image(self, last_key: int) -> ShardImage:
        server, tables = self._server, self._server.tables
        writer = tables.writer
        whole = server.reads.whole
        seen = whole(tables.seen_extents())
        tables.forget_moved()
        claims = [claim for claim_id, claim in sorted(tables.claims.items()) if claim_id >= writer.claim_checkpoint]
        claims = whole(claims)
        keys = dict.fromkeys([key for claim in claims for key, _ in claim.entries])
        return ShardImage(
            epoch=self.epoch,
            last_key=last_key,
            transaction_number=writer.transaction_number,
            delay_checkpoint=writer.delay_checkpoint,
            topic_number_last=writer.topic_number_last,
            now_ms=server.clock(),
            steady_ms=writer.steady_ms,
            topics=whole([(number, namespace, name) for number, (namespace, name) in tables.topics.items()]),
            namespaces=self._read_namespaces(
                {namespace for namespace, _ in tables.topics.values()} | {namespace for namespace, _ in tables.seen}
            ),
            count=self._counting(tables.counts()),
            claims=claims,
            claimed_rows={
                row.key: row for row in whole([claimed_row(tables.items[key]) for key in keys if key in tables.items])
            },
            seen=seen,
            seen_images=whole(tables.seen_images()),
            seen_log=FakeSeenLog(server) if tables.seen else None,
            holding=[number for (number,) in whole(tables.holding())],
        )

    def _read_namespaces(self, used: set[int]) -> list[tuple[int, bytes]]:
        namespaces = self._server.tables.namespaces
        greatest = max(namespaces, default=0)
        for number in [number for number in namespaces if number not in used and number != greatest]:
            del namespaces[number]
        return self._server.reads.whole(sorted(namespaces.items()))

    def _counting(self, counts: LaneCounts) -> Callable[[], LaneCounts]:
        """A function that returns the counts in the snapshot of this moment."""
        server = self._server

        def count() -> LaneCounts:
            if not server.up or server.frozen or server.faults.fate() in (Fate.LOST_BEFORE, Fate.LOST_AFTER):
                raise SessionLostError(f"shard {server.shard_id}: the snapshot's session is lost")
            with losing_session(server.shard_id):
                return LaneCounts(server.reads.whole(counts.lanes), server.reads.whole(counts.delayed))

        return count


def fake_identity(server: FakeServer) -> ShardIdentity | None:
    """The identity as foqs.storage.shard.identity.identity_at finds it. Raises UnavailableError."""
    if not server.up or server.frozen:
        raise UnavailableError(f"the database of shard {server.shard_id} cannot be read")
    return server.tables.identity


def fake_found(server: FakeServer) -> FoundShard:
    """The state of the database as foqs.storage.shard.identity.found_at finds it."""
    writer = server.tables.writer
    return FoundShard("", writer.epoch, writer.owner, writer.transaction_number)


class FakeSeenLog:
    """Implements foqs.shard.port.SeenLog on a FakeServer."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server

    def read(self, namespace: int, first: int, limit: int) -> list[SeenDigests]:
        with losing_session(self._server.shard_id):
            rows = self._server.reads.whole(self._tables().seen_rows(namespace, first, limits.NEVER_MS)[:limit])
        return [SeenDigests(row.first, row.at_ms, b"".join(row.digests)) for row in rows]

    def read_parts(self, key: ImageKey, first: int, limit: int) -> list[SeenPart]:
        with losing_session(self._server.shard_id):
            return self._server.reads.whole(
                [one for one in self._tables().parts_of(key) if one.number >= first][:limit]
            )

    def _tables(self) -> Tables:
        server = self._server
        if not server.up or server.frozen or server.faults.fate() in (Fate.LOST_BEFORE, Fate.LOST_AFTER):
            raise SessionLostError(f"shard {server.shard_id}: the session that reads its dedup ids is lost")
        return server.tables

    def interrupt(self) -> None:
        return None

    def close(self) -> None:
        return None
