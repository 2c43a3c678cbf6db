"""The host of production in memory: fake databases, a manual clock, and one call at a time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

import structlog

from foqs.bootstrap import Host
from foqs.client.dialogue import outcome_of
from foqs.client.flows import Call, Send, no_answer
from foqs.client.retry import Repeat
from foqs.cluster.routing.routing import Chance
from foqs.config import HostConfig
from foqs.host.metrics.scrape import Metrics
from foqs.model import limits
from foqs.model.errors import FoqsError, UnavailableError
from foqs.model.shard_place import EpochAsk, EpochGiven
from foqs.parts import Parts
from foqs.shard.state.lease_table import SLOT_MS
from foqs.storage.schema.migrations import SchemaKind
from foqs.storage.sessions.places import place_of
from foqs.storage.shard.packs.pack_index import PackIndex
from foqs.storage.shard.shard_store import ShardAccess
from foqs.testing.fake_meta import memory_meta
from foqs.testing.fake_reader import FakeReader
from foqs.testing.fake_server import FakeServer
from foqs.testing.fake_slot_source import FakeSlotSource
from foqs.testing.fake_store import FakeStore, fake_found, fake_identity
from foqs.testing.manual_loop import ManualLoop
from foqs.testing.memory_server import MemoryDialogue, MemoryServer
from foqs.transport.peers import Peers
from foqs.wire import codec as wire

START_MS = 1_700_000_000_000
"""The first time on the clock: in November 2023."""
NOTICE_MS = SLOT_MS + limits.TICK_MS
"""Longest time for a host to notice the end of a lease or a delay, in milliseconds."""
_META_URL = "mysql+pymysql://memory/meta"
_SIGN_IN_MS = 10_000
"""The time that the host has to take a token, in milliseconds. It takes none."""
_JUMPS_MAX = 500
"""Most steps in which a long time passes."""


class MemoryHost:
    """A host and its loop. Safe for threads: each method call is done when it returns.

    `MemoryQueue` owns it. The connections of its clients call `exchange` and `pass_time`.
    """

    def __init__(self, shard_count: int) -> None:
        keep_stdout_clean()
        self.lock = threading.RLock()
        self._loop = ManualLoop()
        self._servers = {number: FakeServer(number, self.now_ms, strict=True) for number in range(shard_count)}
        self._server_by_place = {place_of(_shard_url(number)): server for number, server in self._servers.items()}
        self._meta = memory_meta(self.now_ms)
        self._host = self._loop.call(self._make)
        self._run(self._host.start())
        self._dialogues: dict[str, MemoryDialogue] = {"": self._loop.call(self._server.connect)}
        """One connection for each principal that calls. The empty name is for the clients of the queue itself."""
        self._tokens: dict[str, str] = {}
        """The tokens that these connections have shown."""

    def _make(self) -> Host:
        urls = {number: _shard_url(number) for number in self._servers}
        # Not validated, because the URLs belong to no server.
        config = HostConfig.model_construct(
            meta_url=_META_URL, host_name="memory", listen_address="memory", port=0, cluster="memory", shards=urls,
            tokens_without_tls=True, allow_open=True,
        )  # fmt: skip
        fakes: Mapping[str, Any] = {
            "meta": lambda *_: self._meta,
            "store": self._make_store,
            "reader": lambda shard_id, url, packs, served_on: FakeReader(self._servers[shard_id], packs),
            "slot_source": lambda shard_id, url, served_on: FakeSlotSource(self._servers[shard_id]),
            "identity": lambda shard_id, url: fake_identity(self._server_at(url)),
            "found": lambda shard_id, url: fake_found(self._server_at(url)),
            "check_schema": self._check_schema,
            "server": MemoryServer,
            "metrics": Metrics,
            "wall_ms": self.now_ms,
            "monotonic_s": self._loop.time,
            # A host alone needs no lots and no proofs. Its tokens only have to differ.
            "chance": Chance(lambda count: 0, random.Random(0).randbytes),
            "peers": Peers,
        }
        return Host(config, Parts(**fakes))

    def _server_at(self, url: str) -> FakeServer:
        server = self._server_by_place.get(place_of(url))
        if server is None:
            raise UnavailableError("a MemoryQueue has the databases of its own shards alone")
        return server

    def _check_schema(self, url: str, kind: SchemaKind) -> None:
        if kind is SchemaKind.SHARD:
            self._server_at(url)

    def _make_store(
        self,
        access: ShardAccess,
        take_epoch: Callable[[EpochAsk], EpochGiven],
        is_dead: Callable[[str, int], bool],
        packs: PackIndex,
    ) -> FakeStore:
        return FakeStore(
            self._servers[access.shard_id], access.lock_name, access.owner, take_epoch, is_dead, packs, access.cluster
        )

    @property
    def _server(self) -> MemoryServer:
        return cast(MemoryServer, self._host._server)

    def now_ms(self) -> int:
        """The clock of host, databases and clients, in milliseconds since 1970."""
        # A timer's time can be a rounding error below a whole millisecond.
        return START_MS + int(self._loop.time() * 1000 + 1e-3)

    def sign_in(self, caller: str, token: str) -> None:
        """Give a caller another connection that shows this token. Raises PermissionDeniedError if it is not taken."""
        with self.lock:
            dialogue = self._loop.call(self._server.connect)
            request = wire.structs.AuthenticateRequest(token)
            try:
                self._ask(dialogue, Send(Call("authenticate", request, Repeat.ALWAYS), _SIGN_IN_MS))
            except FoqsError:
                self._loop.call(dialogue.close)
                raise
            if caller in self._dialogues:
                self._loop.call(self._dialogues[caller].close)
            self._dialogues[caller], self._tokens[caller] = dialogue, token

    def follow(self, caller: str) -> bool:
        """Sign in again if the connection of this caller was ended. False if the caller never signed in.

        Raises PermissionDeniedError if its token is not taken any more.
        """
        with self.lock:
            dialogue = self._dialogues.get(caller)
            if dialogue is None:
                return False
            if self._loop.call(dialogue.is_ended):
                self.sign_in(caller, self._tokens[caller])
            return True

    def exchange(self, step: Send, caller: str = "") -> Any:
        """Make one attempt of one call. If it has to wait, move the clock until it is answered or its time is over."""
        with self.lock:
            self.follow(caller)
            return self._ask(self._dialogues[caller], step)

    def _ask(self, dialogue: MemoryDialogue, step: Send) -> Any:
        seqid = self._loop.call(dialogue.send, step.call)
        step.is_sent = True
        deadline_s = self._loop.time() + step.timeout_ms / 1000
        self._loop.turn()
        while seqid not in dialogue.replies:
            when_s = self._loop.next_timer_s()
            if when_s is None or when_s > deadline_s:
                raise no_answer(step, "memory")
            self._loop.move_to(when_s)
        return outcome_of(dialogue.replies.pop(seqid), step.call)

    def pass_time(self, by_ms: int) -> None:
        """Move the clock by exactly `by_ms`, in the steps of the host's timers."""
        with self.lock:
            end_s = self._loop.time() + by_ms / 1000
            while (when_s := self._loop.next_timer_s()) is not None and when_s <= end_s:
                self._loop.move_to(when_s)
            self._loop.move_to(end_s)

    def advance(self, by_ms: int) -> None:
        """Move the clock by `by_ms` and by NOTICE_MS, in which the host does the work that was due."""
        with self.lock:
            end_ms = self.now_ms() - START_MS + by_ms + NOTICE_MS
            jump_ms = max(limits.TICK_MS, by_ms // _JUMPS_MAX)
            while (now_ms := self.now_ms() - START_MS) < end_ms:
                self._loop.move_to(min(now_ms + jump_ms, end_ms) / 1000)

    def close(self) -> None:
        """End the host."""
        with self.lock:
            self._run(self._host.stop())
            self._loop.close()

    def _run(self, work: Any) -> Any:
        task = self._loop.call(self._loop.create_task, work)
        self._loop.turn()
        while not task.done():
            when_s = self._loop.next_timer_s()
            assert when_s is not None, "the host waits for nothing"
            self._loop.move_to(when_s)
        return task.result()


def _shard_url(shard_id: int) -> str:
    return f"mysql+pymysql://memory/shard_{shard_id}"


def keep_stdout_clean() -> None:
    """Let the host log through the standard library, unless the program has configured structlog."""
    if not structlog.is_configured():
        structlog.configure(
            # Log text, because keys of an event can be attributes of a LogRecord.
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.processors.format_exc_info,
                structlog.processors.KeyValueRenderer(key_order=["event"]),
            ],
            wrapper_class=structlog.stdlib.BoundLogger,
            logger_factory=structlog.stdlib.LoggerFactory(),
        )
