"""Who calls over a connection, against callers that want to be somebody else, or somebody for longer than they are."""

from __future__ import annotations

import asyncio

import pytest

from foqs.model import limits
from foqs.model.access import AccessMode
from foqs.model.errors import ErrorCode, PermissionDeniedError
from foqs.wire.codec import structs
from tests.support.front_door import dequeue_request, enqueue_request
from tests.support.sign_in_world import (
    START_MS,
    client_counts,
    log_in,
    mailer,
    sign_in_world,
    waits,
    who,
)

OPEN, PERMISSIVE, ENFORCED = AccessMode
DENIED = ErrorCode.PERMISSION_DENIED
SAN = "foqs://prod/mailer"


# ---- tokens ----


async def test_a_token_lets_its_principal_call_what_is_granted_and_nothing_else() -> None:
    async with sign_in_world() as w, w.connect() as client:
        token = mailer(w, "consumer", START_MS + limits.HOUR_MS)
        assert (await who(client)).principal == "nobody"
        identity = (await log_in(client, token)).response
        assert (identity.principal, identity.expires_at_ms) == ("mailer", START_MS + limits.HOUR_MS)
        assert [(one.namespaces, list(one.roles)) for one in identity.grants] == [("ns", ["consumer"])]
        assert await who(client) == identity
        assert w.book.used == [(token[5:17], START_MS)]
        assert (await client.call("dequeue", dequeue_request(1))).error is None
        refused = (await client.call("enqueue", enqueue_request(b"x"))).error
        assert isinstance(refused, PermissionDeniedError)
        assert refused.message.startswith("mailer may not call enqueue in namespace 'ns': it lacks ENQUEUE")
        assert refused.message.endswith(f" (request {refused.request_id})")


@pytest.mark.parametrize("mode", AccessMode)
async def test_a_wrong_token_is_refused_in_every_mode_and_changes_nothing(mode: AccessMode) -> None:
    async with sign_in_world(mode) as w, w.connect() as client:
        token = mailer(w)
        before = (await who(client)).principal
        assert before == ("everybody" if mode is OPEN else "nobody")
        foreign = w.book.token("mailer")
        w.book.revoke(foreign)
        for wrong in (foreign, token[:-1], token.upper(), "", "x" * 3_000):
            reply = await log_in(client, wrong)
            assert reply.error.code is DENIED, wrong
            assert (await who(client)).principal == before
        assert (await log_in(client, token)).error is None
        assert (await log_in(client, foreign)).error.code is DENIED
        assert (await who(client)).principal == "mailer"


async def test_calls_that_were_sent_behind_the_token_have_its_principal() -> None:
    """A large one too, though its frame would be refused before the login."""
    async with sign_in_world() as w, w.connect() as client:
        token = mailer(w)
        client.send("authenticate", structs.AuthenticateRequest(token), 1)
        client.send("enqueue", enqueue_request(b"x" * 100_000), 2)
        client.send("dequeue", dequeue_request(1), 3)
        replies = {reply.seqid: reply for reply in [await client.receive() for _ in range(3)]}
        assert [replies[seqid].error for seqid in (1, 2, 3)] == [None, None, None]


async def test_a_revoked_token_ends_its_long_polls_and_its_connections_within_a_sweep() -> None:
    async with sign_in_world() as w, w.connect() as client, w.connect() as idle:
        token = mailer(w)
        for one in (client, idle):
            assert (await log_in(one, token)).error is None
        await waits(w, client)
        w.book.revoke(token)
        ended = await client.receive()
        assert (ended.seqid, ended.error.code, ended.error.nothing_done) == (9, DENIED, True)
        assert ended.error.message.startswith("mailer may not call dequeue: its credential has ended or was revoked")
        assert await client.is_closed()
        assert await idle.is_closed()
        async with w.connect() as again:
            reply = await log_in(again, token)
            assert reply.error.code is DENIED
            assert "was revoked" in reply.error.message


async def test_a_token_that_expires_in_a_long_poll_ends_it_although_meta_is_away() -> None:
    async with sign_in_world() as w, w.connect() as client:
        token = mailer(w, expires_at_ms=START_MS + 1_000)
        assert (await log_in(client, token)).error is None
        await waits(w, client)
        w.book.is_meta_away = True
        w.book.now_ms += 999
        await w.swept()
        assert w.queue.long_polls
        w.book.now_ms += 1
        assert (await client.receive()).error.code is DENIED
        assert await client.is_closed()


async def test_the_calls_of_a_disabled_principal_that_run_are_done_and_no_others_begin() -> None:
    async with sign_in_world() as w, w.connect() as client:
        assert (await log_in(client, mailer(w))).error is None
        w.queue.gate = asyncio.Event()
        client.send("enqueue", enqueue_request(b"runs"), 2)
        await w.queue.until_running(1)
        w.book.enable("mailer", enabled=False)
        await w.swept()
        reply = await client.call("dequeue", dequeue_request(1))
        assert reply.error.code is DENIED
        assert "or it is disabled" in reply.error.message
        assert (await log_in(client, "x")).error.code is DENIED
        w.queue.gate.set()
        done = await client.receive()
        assert (done.seqid, done.error) == (2, None)
        assert await client.is_closed()


async def test_a_principal_that_was_disabled_and_enabled_between_two_sweeps_keeps_its_connection() -> None:
    async with sign_in_world() as w, w.connect() as client:
        assert (await log_in(client, mailer(w))).error is None
        w.book.enable("mailer", enabled=False)
        w.book.enable("mailer", enabled=True)
        await w.swept()
        assert (await client.call("dequeue", dequeue_request(1))).error is None


async def test_a_grant_that_is_taken_away_ends_the_long_polls_that_need_it_and_no_others() -> None:
    async with sign_in_world() as w, w.connect() as client, w.connect() as other:
        assert (await log_in(client, mailer(w))).error is None
        w.book.grant("reader", {"*": "consumer"})
        assert (await log_in(other, w.book.token("reader"))).error is None
        await waits(w, client)
        await waits(w, other)
        w.book.grant("mailer", {"ns": "consumer viewer"})
        await w.swept()
        assert len(w.queue.long_polls) == 2
        w.book.grant("mailer", {"ns": "producer"})
        ended = (await client.receive()).error
        assert ended.message.startswith("mailer may not call dequeue in namespace 'ns': it lacks CONSUME")
        assert (await client.call("enqueue", enqueue_request(b"x"))).error is None
        assert (await other.receive()).response.items[0].payload == b"x"


async def test_a_grant_that_is_given_holds_on_connections_that_are_open() -> None:
    async with sign_in_world() as w, w.connect() as client:
        assert (await log_in(client, mailer(w, "viewer"))).error is None
        assert (await client.call("enqueue", enqueue_request(b"x"))).error.code is DENIED
        w.book.grant("mailer", {"n*": "producer"})
        await w.swept()
        assert (await client.call("enqueue", enqueue_request(b"x"))).error is None


async def test_a_namesake_that_is_made_after_a_deletion_inherits_no_caller() -> None:
    async with sign_in_world() as w, w.connect() as client:
        assert (await log_in(client, mailer(w))).error is None
        assert (await client.call("enqueue", enqueue_request(b"x"))).error is None
        namespace = w.queue.namespaces.pop("ns")
        w.book.grant("mailer", {})  # The grants of a name are deleted with its namespace.
        await w.swept()
        w.queue.namespaces["ns"] = namespace
        assert (await client.call("enqueue", enqueue_request(b"x"))).error.code is DENIED


async def test_a_principal_that_is_made_anew_under_its_name_does_not_get_the_old_connections() -> None:
    async with sign_in_world() as w, w.connect() as client:
        assert (await log_in(client, mailer(w))).error is None
        w.book.delete("mailer")
        mailer(w)
        assert await client.is_closed()


async def test_a_connection_is_renewed_before_its_token_ends_and_its_long_poll_goes_on() -> None:
    async with sign_in_world() as w, w.connect() as client:
        first = mailer(w, expires_at_ms=START_MS + 1_000)
        second = w.book.token("mailer", START_MS + 9_000)
        assert (await log_in(client, first)).error is None
        await waits(w, client)
        assert (await log_in(client, second)).response.expires_at_ms == START_MS + 9_000
        w.book.now_ms += 2_000
        w.book.revoke(first)
        await w.swept()
        assert len(w.queue.long_polls) == 1
        assert (await client.call("enqueue", enqueue_request(b"x"))).error is None


async def test_after_another_token_the_calls_are_recorded_with_that_one() -> None:
    async with sign_in_world() as w, w.connect() as client:
        first, second = mailer(w), w.book.token("mailer")
        for token in (first, second, first):
            assert (await log_in(client, token)).error is None
            assert (await client.call("enqueue", enqueue_request(b"x"))).error is None
            assert w.queue.contexts[-1].credential == token[5:17]


async def test_whoever_has_a_revoked_credential_is_told_no_grants() -> None:
    async with sign_in_world() as w, w.connect() as client:
        token = mailer(w)
        assert (await log_in(client, token)).error is None
        w.queue.gate = asyncio.Event()
        client.send("enqueue", enqueue_request(b"runs"), 2)  # Keeps the connection open.
        await w.queue.until_running(1)
        w.book.revoke(token)
        await w.swept()
        assert not (await who(client)).grants
        w.queue.gate.set()
        await client.receive()


async def test_a_token_of_another_principal_does_not_take_over_a_connection() -> None:
    async with sign_in_world() as w, w.connect() as client:
        assert (await log_in(client, mailer(w))).error is None
        w.book.grant("admin", {"*": "admin"})
        refused = (await log_in(client, w.book.token("admin"))).error
        assert refused.code is DENIED
        assert "this connection is one of mailer" in refused.message
        assert "admin" not in refused.message
        assert (await who(client)).principal == "mailer"


# ---- plain connections ----


@pytest.mark.parametrize("mode", AccessMode)
async def test_a_token_over_a_plain_connection_from_elsewhere_is_refused_whatever_the_mode(mode: AccessMode) -> None:
    async with sign_in_world(mode) as w:
        token = mailer(w)
        for address in ("10.0.0.9", "::ffff:10.0.0.9", "2001:db8::1", "unknown"):
            w.shown.address = address
            async with w.connect() as client:
                refused = (await log_in(client, token)).error
                assert refused.code is DENIED
                assert "connect with TLS" in refused.message
                assert (await who(client)).principal != "mailer"
        for address in ("127.0.0.8", "::1", "::ffff:127.0.0.1"):
            w.shown.address = address
            async with w.connect() as client:
                assert (await log_in(client, token)).error is None
        w.shown.address, w.shown.names = "10.0.0.9", ()
        async with w.connect() as client:
            assert (await log_in(client, token)).error is None


async def test_a_token_over_a_plain_connection_is_taken_where_the_configuration_says_so() -> None:
    async with sign_in_world(tokens_without_tls=True) as w:
        token, w.shown.address = mailer(w), "10.0.0.9"
        async with w.connect() as client:
            assert (await log_in(client, token)).error is None


# ---- certificates ----


async def test_a_certificate_makes_its_principal_without_a_call() -> None:
    async with sign_in_world() as w:
        mailer(w)
        w.book.certificate(SAN, "mailer")
        w.shown.names = ("mailer.example", SAN)
        async with w.connect() as client:
            assert (await client.call("enqueue", enqueue_request(b"x" * 10_000))).error is None
            assert (await who(client)).principal == "mailer"


async def test_a_certificate_that_expires_ends_its_connections() -> None:
    async with sign_in_world() as w:
        mailer(w)
        w.book.certificate(SAN, "mailer")
        w.shown.names, w.shown.ends_at_ms = (SAN,), START_MS + 1_000
        async with w.connect() as client:
            assert (await who(client)).expires_at_ms == START_MS + 1_000
            await waits(w, client)
            w.book.now_ms += 999
            await w.swept()
            assert w.queue.long_polls
            w.book.now_ms += 1
            assert (await client.receive()).error.code is DENIED
            assert await client.is_closed()
        async with w.connect() as client:
            assert (await client.call("enqueue", enqueue_request(b"x"))).error.code is DENIED


async def test_a_certificate_of_the_right_authority_without_a_row_proves_nothing() -> None:
    async with sign_in_world() as w:
        mailer(w)
        w.book.certificate(SAN, "mailer")
        for name in ("mailer", SAN.upper(), SAN + "/", SAN[:-1], "*", ""):
            w.shown.names = (name,)
            async with w.connect() as client:
                assert (await who(client)).principal == "nobody", name
                assert (await client.call("enqueue", enqueue_request(b"x"))).error.code is DENIED


async def test_a_token_of_another_on_the_connection_of_a_certificate_is_refused() -> None:
    async with sign_in_world() as w:
        own = mailer(w)
        w.book.grant("admin", {"*": "admin"})
        w.book.certificate(SAN, "mailer")
        w.shown.names = (SAN,)
        async with w.connect() as client:  # As its first call, and later.
            assert (await log_in(client, w.book.token("admin"))).error.code is DENIED
            assert (await who(client)).principal == "mailer"
            assert (await log_in(client, own)).error is None
            assert (await log_in(client, w.book.token("admin"))).error.code is DENIED
            assert (await who(client)).principal == "mailer"


async def test_a_certificate_whose_row_is_removed_ends_its_connections_and_one_that_gets_a_row_is_known() -> None:
    async with sign_in_world() as w:
        mailer(w)
        w.book.certificate(SAN, "mailer")
        w.shown.names = (SAN,)
        async with w.connect() as client:
            await waits(w, client)
            w.book.remove_certificate(SAN)
            assert (await client.receive()).error.code is DENIED
            assert await client.is_closed()
        async with w.connect() as client:
            assert (await who(client)).principal == "nobody"
            assert client_counts(w) == (1, 0)
            w.book.certificate(SAN, "mailer")
            await w.swept()
            assert (await who(client)).principal == "mailer"
            assert client_counts(w) == (0, 1)


# ---- meta away ----


async def test_while_meta_is_away_hosts_go_on_with_what_they_know() -> None:
    """A revocation is not known then: to fail closed would make each outage of meta one of everything."""
    async with sign_in_world() as w, w.connect() as client:
        token = mailer(w)
        assert (await log_in(client, token)).error is None
        w.book.is_meta_away = True
        w.book.revoke(token)
        await w.swept()
        assert (await client.call("enqueue", enqueue_request(b"x"))).error is None
        w.book.is_meta_away = False
        w.book.read()
        assert await client.is_closed()


# ---- modes ----


async def test_the_mode_and_the_principal_come_from_one_snapshot() -> None:
    async with sign_in_world(OPEN) as w, w.connect() as client, w.connect() as known:
        token = mailer(w, "viewer")
        assert (await client.call("enqueue", enqueue_request(b"x"))).error is None
        assert (await log_in(known, token)).error is None
        assert (await known.call("enqueue", enqueue_request(b"x"))).error is None  # Nobody is limited.
        w.queue.ready.clear()
        await waits(w, client)
        w.book.set_mode(PERMISSIVE)
        await w.swept()
        assert w.queue.long_polls
        assert (await known.call("enqueue", enqueue_request(b"x"))).error is None
        assert (await client.receive()).response.items
        assert (await client.call("getActiveTopics", structs.ActiveTopicsRequest("ns"))).error is None
        noted = [(row.who, row.verb, row.namespace_name) for row in w.door.refusals.rows()]
        assert noted == [("nobody", "getActiveTopics", "ns"), ("mailer", "enqueue", "ns")]
        w.book.set_mode(ENFORCED)
        await w.swept()
        assert (await client.call("dequeue", dequeue_request(1))).error.code is DENIED
        assert (await known.call("enqueue", enqueue_request(b"x"))).error.code is DENIED
        w.book.set_mode(PERMISSIVE)
        await w.swept()
        assert (await client.call("dequeue", dequeue_request(1))).error is None
        assert len(w.door.refusals.rows()) == 3, "in the enforced mode refusals are told, and not noted"


async def test_a_long_poll_of_nobody_ends_when_access_is_enforced() -> None:
    async with sign_in_world(PERMISSIVE) as w, w.connect() as client:
        await waits(w, client)
        w.book.set_mode(ENFORCED)
        assert (await client.receive()).error.message.startswith("nobody may not call dequeue in namespace 'ns'")
