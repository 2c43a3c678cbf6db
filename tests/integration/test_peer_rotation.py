"""The connection of one host to another while the secret of the cluster is replaced: no call fails for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.cluster.peers.cluster_secrets import ENDED_CONNECTION_MS, ENDED_PROOF_MS, ClusterSecrets
from foqs.model import limits
from foqs.model.calls import CallContext
from foqs.model.cluster import HostRow
from foqs.model.cluster_secret import secret_id
from foqs.model.errors import UnavailableError
from foqs.model.peer_proof import OLD_PROOF, PROOF
from foqs.model.principal import EVERYBODY
from foqs.model.secret import Secret
from foqs.transport import peers as peers_module
from foqs.transport.peers import Peers
from foqs.wire.codec import structs
from tests.support.asked import Asked
from tests.support.peer_world import CLUSTER, SECRET, PeerWorld, greet, known_secrets, peer_world, read_secrets
from tests.support.waiting import PATIENCE_S, until

CALLER = CallContext("10.0.0.1", principal=EVERYBODY)
NEW = Secret(b"n" * 32)


class Rotating:
    """Two hosts, of which one calls the other. Each reads the secrets when the test says so."""

    def __init__(self, world: PeerWorld) -> None:
        self.world = world
        self.skew_s = 0.0
        self.rows: dict[str, HostRow] = {}
        world.secrets = world.door._secrets = known_secrets(dict, SECRET, now_s=self._now_s)
        self.caller = ClusterSecrets(lambda: self.rows, self._now_s)
        read_secrets(self.caller, SECRET)
        self.peers = Peers("caller", CLUSTER, self.caller, lambda host_id: PROOF, os.urandom, self._now_s)
        self.tell()

    def _now_s(self) -> float:
        return self.world.now_s() + self.skew_s

    def pass_ms(self, passed_ms: int) -> None:
        """Move the clock of both hosts on."""
        self.skew_s += passed_ms / 1000

    def tell(self) -> None:
        """The caller reads the row of the host that it calls."""
        self.rows["callee"] = HostRow("callee", "h:1", 1, 1, proof=PROOF, secret_ids=self.world.secrets.ids)

    async def ask(self) -> None:
        remote = self.peers.get("callee", f"127.0.0.1:{self.world.server.port}")
        await Asked(remote.call, CALLER).get_host_status()

    def begin_call(self) -> asyncio.Task[Any]:
        remote = self.peers.get("callee", f"127.0.0.1:{self.world.server.port}")
        return asyncio.create_task(Asked(remote.call, CALLER).enqueue("ns", [structs.NewItem("t", b"x")], False))

    @property
    def link(self) -> Any:
        return self.peers._links["callee"]

    @property
    def connections_count(self) -> int:
        table = self.world.server._table
        assert table is not None
        return len(table.connections)


@asynccontextmanager
async def rotating() -> AsyncIterator[Rotating]:
    async with peer_world() as world, asyncio.timeout(PATIENCE_S):
        made = Rotating(world)
        try:
            yield made
        finally:
            await made.peers.stop()


async def test_calls_move_to_the_new_secret_once_both_know_it_and_those_in_flight_end_where_they_are() -> None:
    async with rotating() as w:
        await w.ask()
        old, w.world.queue.gate = w.link.connection, asyncio.Event()
        call = w.begin_call()
        await w.world.queue.until_running(1)
        read_secrets(w.caller, SECRET, NEW)
        await w.ask()
        assert (w.link.connection, w.link.secret_id) == (old, secret_id(SECRET)), "only one of both knows it"
        read_secrets(w.world.secrets, SECRET, NEW)
        w.tell()
        await w.ask()
        await until(lambda: w.link.connection is not old)
        assert w.link.secret_id == secret_id(NEW)
        await w.ask()
        assert (w.connections_count, old.is_lost) == (2, False)
        w.world.queue.gate.set()
        assert (await call).ids[0]
        await until(lambda: w.connections_count == 1)
        assert not w.link.retired
        await w.ask()


async def test_after_the_end_a_call_waits_for_a_connection_by_the_new_secret() -> None:
    async with rotating() as w:
        await w.ask()
        old = w.link.connection
        for secrets in (w.caller, w.world.secrets):
            read_secrets(secrets, SECRET, NEW)
            read_secrets(secrets, NEW)
        w.tell()
        await w.ask()
        assert w.link.connection is not old
        assert w.link.secret_id == secret_id(NEW)


@pytest.mark.parametrize("first", ["caller", "callee"])
async def test_it_does_not_matter_who_reads_the_end_first(first: str) -> None:
    async with rotating() as w:
        both = [w.caller, w.world.secrets] if first == "caller" else [w.world.secrets, w.caller]
        for one in both:
            read_secrets(one, SECRET, NEW)
        w.tell()
        await w.ask()
        for one in both:
            read_secrets(one, NEW)
            await w.ask()
            await w.peers._connected("callee", w.link.address)
        w.tell()
        await w.ask()
        assert w.link.secret_id == secret_id(NEW)


async def test_calls_go_on_over_the_old_connection_while_the_new_one_cannot_be_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with rotating() as w:
        await w.ask()
        old = w.link.connection
        # A row that promises what its host cannot do.
        read_secrets(w.caller, SECRET, NEW)
        w.rows["callee"] = w.rows["callee"]._replace(secret_ids=(secret_id(SECRET), secret_id(NEW)))
        with capture_logs() as logs:
            await w.ask()
            await until(lambda: w.link.reason != "")
            assert "not the proof" in w.link.reason
            await w.ask()
        assert w.link.connection is old
        assert w.peers.states()["connected"] == 1
        assert [one["event"] for one in logs].count("peer_not_reached") == 1
        read_secrets(w.world.secrets, SECRET, NEW)
        w.pass_ms(peers_module.CONNECT_RETRY_MS)
        await w.ask()
        await until(lambda: w.link.connection is not old)
        assert w.link.secret_id == secret_id(NEW)


async def test_a_taken_back_rotation_moves_the_calls_back() -> None:
    async with rotating() as w:
        for one in (w.caller, w.world.secrets):
            read_secrets(one, SECRET, NEW)
        w.tell()
        await w.ask()
        assert w.link.secret_id == secret_id(NEW)
        for one in (w.caller, w.world.secrets):
            read_secrets(one, SECRET)
        w.tell()
        await w.ask()
        assert w.link.secret_id == secret_id(SECRET)


async def test_a_host_that_has_not_read_the_end_reaches_one_that_has_however_long_ago_that_was() -> None:
    """The meta database went away in that moment, so that the row of the called host tells of the old secret alone."""
    async with rotating() as w:
        read_secrets(w.caller, SECRET, NEW)
        read_secrets(w.world.secrets, NEW)
        w.pass_ms(ENDED_PROOF_MS)
        await w.ask()
        made = w.link.connection
        assert w.link.secret_id == secret_id(NEW)
        w.pass_ms(peers_module.CONNECT_RETRY_MS)
        await w.ask()
        assert w.link.connection is made, "it is not replaced, although the row asks for the old secret"
        assert w.link.opening is None


async def test_the_connection_of_an_ended_secret_is_closed_in_time_and_not_before() -> None:
    async with rotating() as w:
        await w.ask()
        read_secrets(w.world.secrets, NEW)
        w.pass_ms(ENDED_CONNECTION_MS - limits.MINUTE_MS // 2)
        await w.ask()
        assert w.world.door.is_living("caller", secret_id(SECRET))
        with capture_logs() as logs:
            w.pass_ms(limits.MINUTE_MS // 2)
            await until(lambda: w.connections_count == 0)
        (refused,) = [one for one in logs if one["event"] == "peer_refused"]
        assert refused["reason"] == "gone"
        assert "secret has ended" in refused["detail"]


async def test_who_knows_the_old_secret_alone_is_a_stranger_soon_after_the_end() -> None:
    async with rotating() as w:
        read_secrets(w.world.secrets, NEW)
        async with w.world.stranger() as client:
            _, said = await greet(client)
            assert (await client.call("join", structs.JoinRequest(said.caller_proof(SECRET)))).error is None
        w.pass_ms(ENDED_PROOF_MS)
        async with w.world.stranger() as client:
            _, said = await greet(client)
            reply = await client.call("join", structs.JoinRequest(said.caller_proof(SECRET)))
            assert "not the proof" in reply.error.message
        with pytest.raises(UnavailableError, match="not the proof"):
            await w.ask()


async def test_the_answer_to_a_proof_is_by_the_same_secret() -> None:
    async with rotating() as w:
        read_secrets(w.world.secrets, SECRET, NEW)
        for mine, other in ((SECRET, NEW), (NEW, SECRET)):
            async with w.world.stranger() as client:
                _, said = await greet(client)
                reply = await client.call("join", structs.JoinRequest(said.caller_proof(mine)))
                assert reply.response.proof == said.callee_proof(mine)
                assert reply.response.proof != said.callee_proof(other)


async def test_a_host_that_the_cluster_forgets_loses_its_retired_connections_too() -> None:
    async with rotating() as w:
        await w.ask()
        w.world.queue.gate = asyncio.Event()
        call = w.begin_call()
        await w.world.queue.until_running(1)
        for one in (w.caller, w.world.secrets):
            read_secrets(one, SECRET, NEW)
        w.tell()
        await w.ask()
        link = w.link
        await until(lambda: link.secret_id == secret_id(NEW))
        w.peers.keep(set())
        with pytest.raises(UnavailableError) as told:
            await call
        assert not told.value.nothing_done
        await until(lambda: not link.retired)


async def test_hosts_of_the_first_proof_are_met_by_the_secret_that_they_know() -> None:
    async with rotating() as w:
        w.world.proofs["caller"] = OLD_PROOF
        w.world.look()
        read_secrets(w.world.secrets, SECRET, NEW)
        older = w.world.connections_of("caller", callee_proof=OLD_PROOF)
        try:
            await Asked(older.get("callee", f"127.0.0.1:{w.world.server.port}").call, CALLER).get_host_status()
        finally:
            await older.stop()
