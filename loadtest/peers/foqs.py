"""foqs itself: one or more hosts with shards on one private MySQL or MariaDB server, used by thin clients."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from foqs import AccessGrant, AccessMode, AdminClient, NewItem
from foqs.client.owners import Owners
from foqs.client.slot_groups import SlotGroups, shard_map_of
from foqs.dev.local_authority import LocalAuthority
from foqs.dev.local_server import LocalServer
from foqs.host.event_log.log_service import PASS_MS
from foqs.model.errors import FoqsError, UnavailableError
from foqs.model.slots import SLOTS_COUNT, slot_of
from foqs.storage.schema.migrations import SchemaKind, apply
from foqs.storage.sessions.session import connect
from foqs.wire.codec import structs
from loadtest.bench.clients import process_number
from loadtest.bench.scenario import Scenario
from loadtest.bench.stamp import OF_BACKLOG, STAMP
from loadtest.bench.wire import NAMESPACE, Wire
from loadtest.peers.adapter import CACHE_MIB, LOG_MIB, Held, Offer

ROOT = Path(__file__).resolve().parents[2]
COMPILED = ROOT / "build" / "compiled"
_START_S_MAX = 120
_STOP_S_MAX = 60
_FILL_ROWS = 10_000
_EVENT_LOG_REST_S = 5 * PASS_MS / 1_000
"""The event log has seen all that ended so long ago, in a host that has nothing else to do."""
_S_MS = 1_000


class Foqs:
    """The hosts share the shards; the connections of client processes are dealt out to the hosts.

    With `to_owners` the clients learn the shard map, and send acks and nacks where the option of that name of the
    client library sends them.
    """

    name = "foqs"
    durability = (
        "one MySQL transaction a batch, committed before the answer; "
        "innodb_flush_log_at_trx_commit=1, doublewrite on, no binlog; claims too"
    )
    batch_max = 250
    lacks: frozenset[str] = frozenset()
    _build = "this checkout"

    def __init__(self, hosts_count: int = 1, shards_per_host: int = 4, *, to_owners: bool = False) -> None:
        self.lease_ms = 30_000
        self._hosts_count, self._shards_per_host, self._to_owners = hosts_count, shards_per_host, to_owners
        self._processes_count = 1
        """Of producers, or of consumers."""
        self._connects_count = 0
        """Of this process."""
        self._ports = [_free_port() for _ in range(hosts_count)]
        self._server: LocalServer | None = None
        self._hosts: list[subprocess.Popen[bytes]] = []
        self._key_spread = 1
        self._has_events = False

    def configure(self, scenario: Scenario) -> None:
        self._shards_per_host = scenario.foqs.shards or self._shards_per_host
        self._key_spread, self._has_events = scenario.foqs.key_spread, scenario.has_events
        clients = [one for phase in scenario.phases.values() for one in (phase.producers, phase.consumers) if one]
        self._processes_count = max(one.processes for one in clients)

    def log_events(self, per_mille: int) -> None:
        """The host that is told does so at once; others would within a second.

        The event log samples an item when its thread sees that it ended, so that what has ended is seen first.
        """
        time.sleep(_EVENT_LOG_REST_S)
        with self._admin(self._ports[0]) as admin:
            admin.update_namespace(NAMESPACE, events_per_mille=per_mille)

    def __getstate__(self) -> dict[str, Any]:
        """A client needs to know where the hosts are."""
        return self.__dict__ | {"_server": None, "_hosts": []}

    def start(self, directory: Path, topics: Sequence[str]) -> None:
        server = LocalServer(directory / "mysql", buffer_pool_mib=CACHE_MIB, log_file_mib=LOG_MIB)
        server.start()
        self._server = server
        for database, kind in ((server.url("bench_meta"), SchemaKind.META), *self._shard_schemas()):
            apply(database, kind)
        self._start_hosts(self._ports[:1], self._hosts_count * self._shards_per_host)
        with self._admin(self._ports[0]) as admin:
            admin.create_namespace(NAMESPACE, enqueues_per_minute_max=1_000_000_000, key_spread=self._key_spread)
        if self._hosts_count > 1:
            self._start_hosts(self._ports[1:], self._shards_per_host)  # They know the namespace from the beginning.

    def stop(self) -> None:
        self._stop_hosts()
        if self._server is not None:
            self._server.stop()
            self._server = None

    def restart(self) -> int:
        """Of the hosts; the server has its own recovery, which is not foqs's."""
        self._stop_hosts()
        began_ns = time.monotonic_ns()
        self._start_hosts(self._ports, self._shards_per_host)
        return began_ns

    def pids(self) -> dict[str, int]:
        assert self._server is not None
        names = ["host"] if self._hosts_count == 1 else [f"host_{number}" for number in range(self._hosts_count)]
        return {"mysql": self._server.pid} | {name: host.pid for name, host in zip(names, self._hosts, strict=True)}

    def version(self) -> str:
        assert self._server is not None
        return f"{self._build} on {self._server.binary.version}"

    def _environment(self, port: int) -> dict[str, str]:
        """The environment of the host with this port."""
        assert self._server is not None
        events_dir = self._server.data_dir.parent / f"events-{port}"
        return os.environ | ({"FOQS_EVENT_LOG_DIR": str(events_dir)} if self._has_events else {})

    async def connect(self, in_flight: int) -> FoqsClient:
        turn = process_number() + self._processes_count * self._connects_count
        self._connects_count += 1
        port = self._ports[turn % self._hosts_count]
        if not self._to_owners:
            return FoqsClient(await self._wire_to(port), self.lease_ms)
        wires = {port: await self._wire_to(port) for port in self._ports}
        client = OwnersClient(wires, port, self.lease_ms)
        await client.learn()
        return client

    def ready_count(self, topic: str) -> int:
        async def ask() -> int:
            count = 0
            for port in self._ports:
                wire = await self._wire_to(port)
                count += await wire.ready_count(topic)
                wire.close()
            return count

        return asyncio.run(ask())

    def fill(self, topic: str, items_count: int, payload_bytes: int) -> None:
        """Rows as inserts would have left them, while the hosts are away."""
        self._stop_hosts()
        assert self._server is not None
        with connect(self._server.url("bench_meta")) as meta, meta.cursor() as cursor:
            cursor.execute("SELECT number FROM namespace WHERE name = %s", (NAMESPACE,))
            namespace = cursor.fetchone()[0]
        urls = [url for url, _ in self._shard_schemas()]
        shares = [len(range(number, items_count, len(urls))) for number in range(len(urls))]
        due_at_ms = time.time_ns() // 1_000_000 - max(shares)
        for number, (url, share) in enumerate(zip(urls, shares, strict=True)):
            _fill_shard(url, (namespace, topic), share, sum(shares[:number]), payload_bytes, due_at_ms)
        self._start_hosts(self._ports, self._shards_per_host)

    def _shard_schemas(self) -> list[tuple[str, SchemaKind]]:
        assert self._server is not None
        count = self._hosts_count * self._shards_per_host
        return [(self._server.url(f"bench_shard_{number}"), SchemaKind.SHARD) for number in range(count)]

    def _start_hosts(self, ports: Sequence[int], shards_each: int) -> None:
        """Return when each host that runs then serves its part of the shards, which is so many."""
        assert self._server is not None
        urls = [url for url, _ in self._shard_schemas()]
        log_path = self._server.data_dir / "hosts.log"
        started = []
        shards = [flag for shard, url in enumerate(urls) for flag in ("--shard", f"{shard}={url}")]
        for port in ports:
            options = ["--meta-url", self._server.url("bench_meta"), "--port", str(port), "--log-level", "error"]
            options += ["--host-name", f"host-{port}", *shards]
            with log_path.open("ab") as log:
                command = [str(Path(sys.executable).with_name("foqs")), "host", *options]
                started.append(subprocess.Popen(command, stderr=log, env=self._environment(port)))
        self._hosts += started
        deadline_s = time.monotonic() + _START_S_MAX
        for port in self._ports[: len(self._hosts)]:
            while self._owned_count(port) != shards_each:
                if time.monotonic() > deadline_s or any(host.poll() is not None for host in started):
                    raise RuntimeError(f"the host did not start:\n{log_path.read_text()[-2_000:]}")
                time.sleep(0.02)

    def _owned_count(self, port: int) -> int:
        """The shards that a host serves; 0 as well while it does not respond."""
        try:
            with self._admin(port) as admin:
                return sum(shard.state == "owned" for shard in admin.host_status().shards)
        except FoqsError:
            return 0

    def _admin(self, port: int) -> AdminClient:
        return AdminClient(_address(port))

    async def _wire_to(self, port: int) -> Wire:
        return await Wire.connect(port)

    def _stop_hosts(self) -> None:
        for host in self._hosts:
            host.terminate()
        for host in self._hosts:
            host.wait(_STOP_S_MAX)
        self._hosts.clear()


class CompiledFoqs(Foqs):
    """With the host's hot modules compiled to C. Clients and servers are the same."""

    name = "foqs-compiled"
    _build = "this checkout, hot modules compiled (make compiled)"

    def _environment(self, port: int) -> dict[str, str]:
        return super()._environment(port) | {"PYTHONPATH": str(COMPILED)}


class EnforcedFoqs(Foqs):
    """With enforced access. Its clients have the token of a principal with the roles that they need and no others."""

    name = "foqs-enforced"
    _build = "this checkout, with enforced access"

    def __init__(self) -> None:
        super().__init__()
        self._admin_token = self._token = ""

    def start(self, directory: Path, topics: Sequence[str]) -> None:
        super().start(directory, topics)
        with self._admin(self._ports[0]) as admin:
            admin.create_principal("root", [AccessGrant("*", ("admin", "operator"))])
            admin.create_principal(NAMESPACE, [AccessGrant(NAMESPACE, ("owner",))])
            admin_token, self._token = (admin.create_token(name).token for name in ("root", NAMESPACE))
            admin.set_access_mode(AccessMode.ENFORCED)
        self._admin_token = admin_token

    def _admin(self, port: int) -> AdminClient:
        return AdminClient(_address(port), token=self._admin_token or None)

    async def _wire_to(self, port: int) -> Wire:
        wire = await super()._wire_to(port)
        await wire.call("authenticate", structs.AuthenticateRequest(self._token))
        return wire


class ProtectedFoqs(EnforcedFoqs):
    """The same, and its clients call by TLS 1.3."""

    name = "foqs-protected"
    _build = "this checkout, with TLS 1.3 and enforced access"

    def __init__(self) -> None:
        super().__init__()
        self._ca_file = ""
        self._files: dict[str, str] = {}

    def start(self, directory: Path, topics: Sequence[str]) -> None:
        authority = LocalAuthority(directory / "tls")
        authority.prepare(datetime.now(UTC))
        self._ca_file = str(authority.ca_file)
        # What starts the hosts makes plain calls.
        self._files = {
            "FOQS_TLS": "accepted",
            "FOQS_TLS_CERT_FILE": str(authority.cert_file),
            "FOQS_TLS_KEY_FILE": str(authority.key_file),
        }
        super().start(directory, topics)

    def _environment(self, port: int) -> dict[str, str]:
        return super()._environment(port) | self._files

    async def _wire_to(self, port: int) -> Wire:
        context = ssl.create_default_context(cafile=self._ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        wire = await Wire.connect(port, tls=context)
        await wire.call("authenticate", structs.AuthenticateRequest(self._token))
        return wire


def compiled_fault() -> str | None:
    """Why there are no compiled modules of this checkout, or None."""
    if not list(COMPILED.glob(f"foqs/model/*{sysconfig.get_config_var('EXT_SUFFIX')}")):
        return "it is not built (make compiled builds it)"
    for source in (ROOT / "pyproject.toml", *sorted((ROOT / "foqs").rglob("*.py"))):
        built = COMPILED / source.relative_to(ROOT)
        if not built.exists() or built.read_bytes() != source.read_bytes():
            return f"{source.relative_to(ROOT)} is another one than what was compiled (make compiled builds it anew)"
    return None


class FoqsClient:
    """The library's codec on a bare socket: the host is what is measured, not the comfort of foqs.AsyncClient."""

    def __init__(self, wire: Wire, lease_ms: int) -> None:
        self._wire, self._lease_ms = wire, lease_ms
        self._groups: SlotGroups | None = None

    async def shards_of(self, offers: Sequence[Offer]) -> Sequence[int]:
        if self._groups is None:
            told = await self._wire.call("getShardMap", structs.ShardMapRequest(NAMESPACE))
            first = slot_of(NAMESPACE, "", 1)
            shards = [told.shard_by_slot[(first + at) % SLOTS_COUNT] for at in range(told.key_spread)]
            self._groups = SlotGroups(shards, 0, 0)
        # It asks them for nothing but their dedup ids.
        return self._groups.of(cast(Sequence[NewItem], offers))

    async def enqueue(self, offers: Sequence[Offer]) -> None:
        await self._wire.enqueue(offers)

    async def claim(self, topics: Sequence[str], count: int, wait_ms: int) -> list[Held]:
        items = await self._wire.dequeue(topics, count, wait_ms, self._lease_ms)
        return [Held(item.payload, item.receipt) for item in items]

    async def ack(self, held: Sequence[Held]) -> None:
        await self._wire.ack([one.receipt for one in held])

    async def nack(self, held: Sequence[Held], delay_ms: int) -> None:
        await self._wire.nack([one.receipt for one in held], delay_ms)

    async def close(self) -> None:
        self._wire.close()


class OwnersClient(FoqsClient):
    """Acks and nacks go to the host that has the shards of most of their items; everything else to one host."""

    def __init__(self, wires: Mapping[int, Wire], port: int, lease_ms: int) -> None:
        """`wires` are to all hosts, by their ports; `port` is of the one that this client knows best."""
        super().__init__(wires[port], lease_ms)
        self._wires = wires
        self._owners = Owners()

    async def ack(self, held: Sequence[Held]) -> None:
        receipts = [one.receipt for one in held]
        await self._owner_of(receipts).ack(receipts)

    async def nack(self, held: Sequence[Held], delay_ms: int) -> None:
        receipts = [one.receipt for one in held]
        await self._owner_of(receipts).nack(receipts, delay_ms)

    async def close(self) -> None:
        for wire in self._wires.values():
            wire.close()

    async def learn(self) -> None:
        """Learn the shard map from hosts that have just shared the shards out; no run here is so long that it ages."""
        async with asyncio.timeout(_START_S_MAX):
            while True:
                with suppress(UnavailableError):
                    told = await self._wire.call("getShardMap", structs.ShardMapRequest(None))
                    self._owners.update(shard_map_of(told), 0)
                    if {address.port for address in self._owners.addresses.values()} == self._wires.keys():
                        return
                await asyncio.sleep(0.1)

    def _owner_of(self, receipts: Sequence[str]) -> Wire:
        owner = self._owners.of_ids(receipts)
        return self._wire if owner is None else self._wires[owner.port]


def _fill_shard(
    url: str, topic: tuple[int, str], items_count: int, items_before: int, payload_bytes: int, due_at_ms: int
) -> None:
    """Once in the life of a shard. Items of all shards together have the numbers from 1 on.

    The shards fall due side by side, an item a millisecond from `due_at_ms` on, as enqueues would have filled them:
    were one shard due before the next, the first would serve all dequeues alone.
    """
    now_ns, expires_at = time.monotonic_ns(), due_at_ms + 10**9
    with connect(url, 600 * _S_MS) as session, session.cursor() as cursor:
        number = _topic_number(cursor, *topic)
        for first in range(0, items_count, _FILL_ROWS):
            rows = []
            for key in range(first + 1, min(first + _FILL_ROWS, items_count) + 1):
                stamp = STAMP.pack(now_ns, OF_BACKLOG | (items_before + key), 0).hex()
                payload = f"CONCAT(x'{stamp}',REPEAT('x',{payload_bytes - STAMP.size}))"
                rows.append(
                    f"({key},{number},{key % 10},{due_at_ms + key - 1},{number},{key % 10},{due_at_ms},"
                    f"{expires_at},0,0,'',{payload})"
                )
            cursor.execute(
                "INSERT INTO item (id, lane, urgency, due_at, topic, priority, enqueued_at, expires_at, lease_ms, "
                f"at_most_once, metadata, payload) VALUES {','.join(rows)}"
            )
            session.commit()


def _topic_number(cursor: Any, namespace: int, topic: str) -> int:
    """Of a shard's topic, which is made if it is not there."""
    named = (namespace, topic.encode())
    cursor.execute("SELECT number FROM topic WHERE namespace = %s AND name = %s", named)
    if row := cursor.fetchone():
        return int(row[0])
    cursor.execute("UPDATE writer SET topic_number_last = topic_number_last + 1")
    cursor.execute("INSERT INTO topic SELECT topic_number_last, %s, %s FROM writer", named)
    cursor.execute("SELECT topic_number_last FROM writer")
    return int(cursor.fetchone()[0])


def _address(port: int) -> str:
    return f"127.0.0.1:{port}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
