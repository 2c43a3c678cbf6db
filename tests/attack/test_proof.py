"""Somebody without the secret reaches the port, and wants to be taken for a host: each try is refused, and closed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.contract.verbs import VERBS
from foqs.model.calls import CallContext
from foqs.model.errors import PermissionDeniedError, UnavailableError
from foqs.model.old_proof import proof_of
from foqs.model.peer_proof import OLD_PROOF, PROOF
from foqs.model.principal import EVERYBODY
from foqs.transport import peers as peers_module
from foqs.wire.codec import METHODS, UNKNOWN_METHOD, Codec, structs
from foqs.wire.frames import scan_call
from tests.support.asked import Asked
from tests.support.peer_world import SECRET, greet, join, peer_world
from tests.support.raw_client import RawClient
from tests.support.waiting import PATIENCE_S, until

CALLER = CallContext("10.0.0.1", principal=EVERYBODY)
REPORT = structs.ReportRequest([])


async def is_refused(client: RawClient, reason: str, logs: list[Any]) -> None:
    """The connection ends, and the log says why."""
    assert await client.is_closed()
    refusals = [entry for entry in logs if entry["event"] == "peer_refused"]
    assert [entry["reason"] for entry in refusals] == [reason]


async def test_a_host_cannot_be_made_to_prove_itself_to_itself() -> None:
    """Reflection: what the host sends as a callee is of no use to a caller, under any name."""
    async with peer_world() as w, w.stranger() as client:
        with capture_logs() as logs:
            greeted, _ = await greet(client)
            assert greeted.response.nonce
            reply = await client.call("join", structs.JoinRequest(greeted.response.nonce))
            assert isinstance(reply.error, PermissionDeniedError)
            await is_refused(client, "wrong_proof", logs)


async def test_what_one_host_signs_is_of_no_use_at_another() -> None:
    """Relay: the proof that a host makes for another callee, or for another connection, joins nowhere."""
    async with peer_world() as w, w.stranger() as client, w.stranger() as other:
        with capture_logs() as logs:
            _, said = await greet(client)
            _, elsewhere = await greet(other)
            for wrong in (elsewhere, said._replace(callee_id="other")):
                assert wrong.caller_proof(SECRET) != said.caller_proof(SECRET)
            reply = await client.call("join", structs.JoinRequest(elsewhere.caller_proof(SECRET)))
            assert isinstance(reply.error, PermissionDeniedError)
            await is_refused(client, "wrong_proof", logs)


async def test_a_join_that_was_overheard_is_of_no_use_again() -> None:
    async with peer_world() as w, w.stranger() as first, w.stranger() as second:
        _, said = await greet(first)
        overheard = structs.JoinRequest(said.caller_proof(SECRET))
        assert (await first.call("join", overheard)).response.proof == said.callee_proof(SECRET)
        await second.call("greet", structs.GreetRequest(PROOF, "caller", "callee", said.nonce_caller))
        assert isinstance((await second.call("join", overheard)).error, PermissionDeniedError)
        assert await second.is_closed()


async def test_there_is_one_try_a_connection() -> None:
    async with peer_world() as w, w.stranger() as client:
        _, said = await greet(client)
        client.send("join", structs.JoinRequest(b"0" * 32), 1)
        client.send("join", structs.JoinRequest(said.caller_proof(SECRET)), 2)
        assert isinstance((await client.receive()).error, PermissionDeniedError)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            assert isinstance((await client.receive()).error, PermissionDeniedError)
            assert await client.is_closed()


@pytest.mark.parametrize(
    ("caller", "callee", "reason"), [("caller", "other", "another_callee"), ("callee", "callee", "own_id")]
)
async def test_whoever_means_another_host_or_says_to_be_this_one_is_refused(
    caller: str, callee: str, reason: str
) -> None:
    async with peer_world() as w, w.stranger() as client:
        with capture_logs() as logs:
            reply, _ = await greet(client, caller, callee)
            assert isinstance(reply.error, PermissionDeniedError)
            await is_refused(client, reason, logs)


async def test_a_stranger_that_greets_is_not_told_which_host_this_is() -> None:
    """Its name and the time of its start are in its id, without which nobody gets further."""
    async with peer_world() as w:
        for callee in ("other", "", "call", "callee#1"):
            async with w.stranger() as client:
                reply, _ = await greet(client, callee=callee)
                assert isinstance(reply.error, PermissionDeniedError)
                assert "callee" not in str(reply.error).replace(repr(callee), "")


async def test_a_host_that_is_dead_or_not_known_yet_is_told_to_try_again_and_shown_nothing() -> None:
    async with peer_world() as w, w.stranger() as client:
        reply, said = await greet(client, "dead")
        assert isinstance(reply.error, UnavailableError)
        assert reply.error.nothing_done
        joined = await client.call("join", structs.JoinRequest(said.caller_proof(SECRET)))
        assert isinstance(joined.error, PermissionDeniedError)


async def test_a_dead_host_that_calls_for_long_is_told_of_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs.cluster.routing.peer_door.STRANGER_MS", 0)
    async with peer_world() as w, w.stranger() as client:
        with capture_logs() as logs:
            await greet(client, "dead")
        assert [entry["reason"] for entry in logs if entry["event"] == "peer_refused"] == ["not_known_to_live"]


async def test_join_without_greet_is_refused() -> None:
    async with peer_world() as w, w.stranger() as client:
        with capture_logs() as logs:
            reply = await client.call("join", structs.JoinRequest(b"0" * 32))
            assert isinstance(reply.error, PermissionDeniedError)
            await is_refused(client, "not_greeted", logs)


async def test_a_second_greet_is_refused_also_of_a_host_that_has_joined() -> None:
    async with peer_world() as w, w.stranger() as client, w.stranger() as peer:
        with capture_logs() as logs:
            await greet(client)
            reply, _ = await greet(client)
            assert isinstance(reply.error, PermissionDeniedError)
            await is_refused(client, "not_first", logs)
        assert (await join(peer)).response.proof
        with capture_logs() as logs:
            reply, _ = await greet(peer, "other")
            assert isinstance(reply.error, PermissionDeniedError)
            await is_refused(peer, "not_first", logs)


async def test_whoever_has_called_as_a_client_does_not_become_a_host() -> None:
    async with peer_world() as w, w.stranger() as client:
        await client.call("getShardMap", structs.ShardMapRequest("ns"))
        with capture_logs() as logs:
            reply, _ = await greet(client)
            assert isinstance(reply.error, PermissionDeniedError)
            await is_refused(client, "not_first", logs)


async def test_nothing_is_called_between_greet_and_join() -> None:
    async with peer_world() as w, w.stranger() as client:
        with capture_logs() as logs:
            await greet(client)
            client.send("enqueue", structs.EnqueueRequest("ns", [structs.NewItem("t", b"x")]), 1)
            await is_refused(client, "not_joined", logs)
        assert not w.queue.contexts


async def test_who_greets_and_does_not_join_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs.model.peer_proof.JOIN_MS_MAX", 50)
    async with peer_world() as w, w.stranger() as client:
        with capture_logs() as logs:
            await greet(client)
            await is_refused(client, "late", logs)


async def test_a_host_joins_at_once_however_many_strangers_greet() -> None:
    """They take no place from anybody: what was said is kept by the connection alone."""
    async with peer_world() as w, asyncio.timeout(PATIENCE_S):
        is_over = False
        greeted = 0

        async def flood() -> None:
            nonlocal greeted
            while not is_over:
                async with w.stranger() as client:
                    reply, _ = await greet(client)
                    assert reply.response.nonce
                    greeted += 1

        floods = [asyncio.create_task(flood()) for _ in range(20)]
        await until(lambda: greeted > 200)
        for name in ("caller", "other"):
            peers = w.connections_of(name)
            remote = peers.get("callee", f"127.0.0.1:{w.server.port}")
            await Asked(remote.call, CALLER).get_host_status()
            assert peers.states()["connected"] == 1
            await peers.stop()
        is_over = True
        await asyncio.gather(*floods)


async def test_refusals_are_logged_ten_a_sweep() -> None:
    async with peer_world(sweep_ms=3_600_000) as w:
        with capture_logs() as logs:
            for _ in range(30):
                async with w.stranger() as client:
                    await client.call("join", structs.JoinRequest(b"0" * 32))
                    assert await client.is_closed()
        assert sum(entry["event"] == "peer_refused" for entry in logs) == 10


async def test_a_peer_calls_the_verbs_of_hosts_alone() -> None:
    async with peer_world() as w, w.stranger() as peer, asyncio.timeout(PATIENCE_S):
        assert (await join(peer)).response.proof
        others = {name for name, verb in VERBS.items() if not verb.is_for_peers}
        assert {
            "createNamespace",
            "deleteNamespace",
            "setTopicPolicy",
            "addShard",
            "updateShard",
            "createJob",
        } <= others
        for name in sorted(others):
            reply = await peer.call(name, METHODS[name].request())
            assert isinstance(reply.error, PermissionDeniedError), name
        assert not w.queue.contexts
        assert (await peer.call("getHostStatus", structs.HostStatusRequest())).response.host


@pytest.mark.parametrize("name", ["report", "seek", "hint"])
async def test_a_client_calls_none_of_the_verbs_of_hosts(name: str) -> None:
    async with peer_world() as w, w.stranger() as client:
        reply = await client.call(name, METHODS[name].request([]))
        assert isinstance(reply.error, PermissionDeniedError)


@pytest.mark.parametrize(
    "call",
    [
        ("getActiveTopics", structs.ActiveTopicsRequest("ns", shard_ids=[1])),
        ("peekItems", structs.PeekItemsRequest("ns", "t", shard_ids=[1])),
        ("listDeadLetters", structs.ListDeadLettersRequest("ns", "t", shard_ids=[1])),
        ("planExport", structs.PlanExportRequest("ns", shard_ids=[1])),
    ],
    ids=lambda call: call[0],
)
async def test_fields_of_hosts_are_refused_from_others(call: tuple[str, Any]) -> None:
    async with peer_world() as w, w.stranger() as client:
        reply = await client.call(*call)
        assert reply.error is not None
        assert "only hosts of this cluster" in str(reply.error)
        assert not w.queue.contexts


async def test_the_connection_of_a_host_that_lives_no_more_is_closed() -> None:
    async with peer_world() as w, w.stranger() as peer:
        await join(peer)
        with capture_logs() as logs:
            del w.proofs["caller"]
            w.look()
            assert isinstance((await peer.call("report", REPORT)).error, PermissionDeniedError)
            await is_refused(peer, "gone", logs)


@asynccontextmanager
async def impostor(answer: Callable[[str, int], bytes]) -> AsyncIterator[tuple[str, list[str]]]:
    """Somebody without the secret who listens where a host is to be. Gives the address, and what is called there."""
    calls: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while header := await reader.read(4):
            message = await reader.readexactly(int.from_bytes(header, "big"))
            name, seqid, _ = scan_call(message, 0, len(message))
            calls.append(name.decode())
            writer.write(answer(name.decode(), seqid))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", calls


async def test_who_listens_in_the_place_of_a_host_learns_nothing_and_is_not_believed() -> None:
    """The host that dials it says nothing but its greeting and its proof, and calls nothing."""
    codec = Codec()
    answers = {"greet": structs.GreetResponse(b"n" * 32), "join": structs.JoinResponse(b"p" * 32)}

    def answer(name: str, seqid: int) -> bytes:
        return codec.encode_reply(METHODS[name], answers[name], seqid)

    async with impostor(answer) as (address, calls), peer_world() as w:
        with pytest.raises(UnavailableError, match="its proof is wrong") as told:
            await Asked(w.peers.get("callee", address).call, CALLER).ack("ns", ["1-1:1"])
        assert told.value.nothing_done
    assert calls == ["greet", "join"]


async def test_nobody_makes_a_host_fall_back_to_the_old_proof() -> None:
    """It says hello to hosts whose rows say that they know nothing else, whatever is answered to greet."""
    codec = Codec()

    def answer(name: str, seqid: int) -> bytes:
        return codec.encode_application_error(name.encode(), UNKNOWN_METHOD, "no such method", seqid)

    async with impostor(answer) as (address, calls), peer_world() as w:
        with pytest.raises(UnavailableError):
            await Asked(w.peers.get("callee", address).call, CALLER).get_host_status()
    assert calls == ["greet"]


async def say_hello(client: RawClient, host_id: str, challenge: bytes = b"0" * 16) -> Any:
    return await client.call("hello", structs.HelloRequest(host_id, challenge))


@pytest.mark.parametrize("host_id", ["caller", "callee", "dead"])
async def test_hello_is_for_living_hosts_of_older_builds_alone(host_id: str) -> None:
    async with peer_world() as w, w.stranger() as client:
        w.proofs["callee"] = OLD_PROOF  # Never for its own id, whatever the row says.
        w.look()
        with capture_logs() as logs:
            reply = await say_hello(client, host_id)
            assert isinstance(reply.error, PermissionDeniedError)
            await is_refused(client, "old_proof", logs)


async def test_a_host_of_an_older_build_is_let_in_with_a_warning() -> None:
    async with peer_world() as w, w.stranger() as client:
        w.proofs["caller"] = OLD_PROOF
        w.look()
        hello = (await say_hello(client, "caller")).response
        assert hello.proof == proof_of(SECRET, "callee", "caller", b"0" * 16)
        proof = proof_of(SECRET, "caller", "callee", hello.challenge)
        with capture_logs() as logs:
            reply = await client.call("prove", structs.ProveRequest("caller", hello.challenge, proof))
            assert reply.error is None
        assert [(entry["event"], entry["log_level"]) for entry in logs] == [("peer_admitted_by_old_proof", "warning")]
        assert (await client.call("report", REPORT)).error is None


async def test_who_begins_as_one_old_host_does_not_end_as_another_or_as_a_new_one() -> None:
    async with peer_world() as w:
        w.proofs["caller"] = OLD_PROOF
        w.look()
        async with w.stranger() as client:
            hello = (await say_hello(client, "caller")).response
            proof = proof_of(SECRET, "other", "callee", hello.challenge)
            reply = await client.call("prove", structs.ProveRequest("other", hello.challenge, proof))
            assert isinstance(reply.error, PermissionDeniedError)
        async with w.stranger() as client, w.stranger() as second:
            hello = (await say_hello(client, "caller")).response
            await say_hello(second, "caller")
            proof = proof_of(SECRET, "caller", "callee", hello.challenge)
            reply = await second.call("prove", structs.ProveRequest("caller", hello.challenge, proof))
            assert isinstance(reply.error, PermissionDeniedError), "the challenge of another connection"


async def test_a_host_reaches_a_host_of_an_older_build_by_the_old_proof() -> None:
    async with peer_world() as w:
        w.proofs["caller"] = OLD_PROOF  # As the host that is called, which is of this build, is to see it.
        w.look()
        old = w.connections_of("caller", callee_proof=OLD_PROOF)
        assert (await Asked(old.get("callee", f"127.0.0.1:{w.server.port}").call, CALLER).get_host_status()).host
        await old.stop()


async def test_a_host_that_has_just_started_is_let_in_as_soon_as_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "GREET_AGAIN_MS", 5)
    async with peer_world() as w, asyncio.timeout(PATIENCE_S):
        del w.proofs["caller"]
        w.look()
        calling = asyncio.create_task(Asked(w.remote().call, CALLER).get_host_status())
        await until(lambda: "caller" in w.door._strangers)
        w.proofs["caller"] = PROOF
        w.look()
        assert (await calling).host


def _call_of(name: str, request: Any) -> Callable[[RawClient], Awaitable[Any]]:
    return lambda client: client.call(name, request)


@pytest.mark.parametrize(
    "call",
    [
        _call_of("greet", structs.GreetRequest(PROOF, "caller", "callee", os.urandom(31))),
        _call_of("greet", structs.GreetRequest(PROOF + 1, "caller", "callee", os.urandom(32))),
        _call_of("greet", structs.GreetRequest(PROOF, "", "callee", os.urandom(32))),
        _call_of("greet", structs.GreetRequest(PROOF, "x" * 100_000, "callee", os.urandom(32))),
        _call_of("greet", structs.GreetRequest()),
        _call_of("join", structs.JoinRequest()),
    ],
)
async def test_a_greeting_that_is_none_gets_an_error_and_lets_nobody_in(
    call: Callable[[RawClient], Awaitable[Any]],
) -> None:
    async with peer_world() as w, w.stranger() as client:
        assert (await call(client)).error is not None
        assert isinstance((await client.call("join", structs.JoinRequest(b"0" * 32))).error, PermissionDeniedError)
        assert await client.is_closed()
