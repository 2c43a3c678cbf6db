"""Callers that have shown no credential, and what they can reach of a server with enforced access."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs

from foqs.model.access import AccessMode
from foqs.model.errors import ErrorCode, OverloadedError
from foqs.transport.bounds import TransportLimits
from foqs.wire.codec import LENGTH_BYTES, Codec, structs
from tests.support.front_door import enqueue_request
from tests.support.sign_in_world import (
    SWEEP_MS,
    log_in,
    mailer,
    sign_in_world,
    who,
)

OPEN, PERMISSIVE, ENFORCED = AccessMode
DENIED = ErrorCode.PERMISSION_DENIED
SAN = "foqs://prod/mailer"


# ---- before the login ----


async def test_before_the_login_every_call_is_refused_by_its_name_with_one_text_whatever_it_names() -> None:
    async with sign_in_world() as w, w.connect() as client:
        texts = set()
        for namespace in ("ns", "gone", "", "\0"):
            error = (await client.call("ack", structs.AckRequest(namespace, ["a"]))).error
            assert (error.code, error.nothing_done) == (DENIED, True)
            texts.add(error.message.partition(" (request ")[0])
        assert texts == {
            "nobody may call ack: call authenticate with a token first, or connect with a client certificate"
        }
        assert not w.door.looked_up
        for verb in ("report", "seek", "hint", "endWait", "listHosts", "createNamespace"):
            error = (await client.call(verb, getattr(structs, f"{verb[0].upper()}{verb[1:]}Request")())).error
            assert error.code is DENIED, verb
            assert error.message.startswith(f"nobody may call {verb}:")


async def test_before_the_login_nothing_of_a_call_is_decoded_but_its_head() -> None:
    async with sign_in_world() as w, w.connect() as client:
        message = bytearray(Codec().encode_call("enqueue", enqueue_request(b"x"), 7)[LENGTH_BYTES:])
        del message[25:]
        message += b"\x0f\x00\x01\x0c\xff\xff\xff\xff"  # A list of 4 billion structs.
        await client.send_bytes(len(message).to_bytes(4, "big") + bytes(message))
        reply = await client.receive()
        assert (reply.seqid, reply.error.code) == (7, DENIED)


async def test_before_the_login_a_large_frame_is_refused_at_its_head_and_never_kept() -> None:
    async with sign_in_world() as w, w.connect() as client:
        frame = Codec().encode_call("enqueue", enqueue_request(b"x" * 1_000_000), 7)
        await client.send_bytes(frame[:200])
        reply = await client.receive()
        assert (reply.seqid, reply.error.code) == (7, DENIED)
        assert await client.is_closed()
        assert w.counts.errors == ["login_frame"]


async def test_who_does_not_log_in_is_turned_out_and_who_did_is_not() -> None:
    bounds = TransportLimits(sweep_ms=SWEEP_MS, login_ms_max=100)
    async with sign_in_world(bounds=bounds) as w, w.connect() as client, w.connect() as known:
        assert (await log_in(known, mailer(w))).error is None
        await who(client)
        assert await client.is_closed()
        assert w.counts.errors == ["login_deadline"]
        assert (await who(known)).principal == "mailer"


async def test_callers_without_a_login_are_bounded_by_address_and_in_all() -> None:
    bounds = TransportLimits(sweep_ms=SWEEP_MS, unknown_connections_max=3, unknown_connections_per_address_max=2)
    async with sign_in_world(bounds=bounds) as w, w.connect() as first, w.connect() as second:
        token = mailer(w)
        await who(first)
        await who(second)
        async with w.connect() as third:
            assert await third.is_closed()
        async with w.connect("127.0.0.2") as elsewhere:
            await who(elsewhere)
            async with w.connect("127.0.0.3") as fourth:
                assert await fourth.is_closed()
            assert (await log_in(first, token)).error is None
            async with w.connect() as third:
                assert (await who(third)).principal == "nobody"
        assert w.counts.refused == ["unknown_connections_per_address_max", "unknown_connections_max"]


async def test_a_principal_has_so_many_connections_and_its_tokens_count_as_one() -> None:
    bounds = TransportLimits(sweep_ms=SWEEP_MS, connections_per_principal_max=2)
    async with sign_in_world(bounds=bounds) as w, w.connect() as first, w.connect() as second, w.connect() as third:
        token, other = mailer(w), w.book.token("mailer")
        assert (await log_in(first, token)).error is None
        assert (await log_in(second, other)).error is None
        assert (await log_in(second, token)).error is None
        error = (await log_in(third, token)).error
        assert isinstance(error, OverloadedError)
        assert "mailer has 2 connections" in error.message
        first.reset()
        await w.until_open(2)
        assert (await log_in(third, token)).error is None


# ---- secrets ----


async def test_a_token_is_in_no_log_no_error_and_no_repr() -> None:
    async with sign_in_world() as w, w.connect() as client:
        token = mailer(w)
        w.book.revoke(token)
        with capture_logs() as logs:
            errors = [(await log_in(client, text)).error for text in (token, token + "x", token[:-1] + "?")]
        assert logs
        secret = token[18:]
        for text in (repr(logs), repr(errors), repr(structs.AuthenticateRequest(token)), repr(w.server._table)):
            assert secret not in text
            assert secret[:-6] not in text


def test_a_struct_with_a_new_token_does_not_show_it() -> None:
    """What a client decodes has it too, and tracebacks show local values."""
    for token in ("foqs_aaaaaaaaaaaa_" + "s3cr3t", b"s3cr3t"):
        made = structs.CreateTokenResponse(token, structs.AccessToken("aaaaaaaaaaaa", "mailer"))
        for text in (repr(made), str(made), repr([made]), f"{made}"):
            assert "s3cr3t" not in text
            assert "mailer" in text, "all else is shown"


def test_every_struct_of_the_wire_with_a_token_hides_it() -> None:
    """A new one is found here."""
    for name in dir(structs):
        struct = getattr(structs, name)
        if _has_token(struct):
            assert "s3cr3t" not in repr(struct(token="s3cr3t")), name


def _has_token(struct: Any) -> bool:
    spec = getattr(struct, "thrift_spec", None) or {}
    return any(field[1] == "token" for field in spec.values())


# ---- hosts ----


async def test_a_host_greets_before_any_other_call_and_whoever_asked_who_it_is_cannot() -> None:
    async with sign_in_world() as w, w.connect() as client:
        await who(client)
        await client.call("greet", structs.GreetRequest(2, "a", "b", b"x" * 32))
        assert await client.is_closed()
        assert w.counts.errors == ["peer_refused"]


async def test_in_the_enforced_mode_a_host_can_greet_without_a_credential() -> None:
    async with sign_in_world() as w, w.connect() as client:
        error = (await client.call("greet", structs.GreetRequest(2, "a", "b", b"x" * 32))).error
        assert not (error.message or "").startswith("nobody may"), "the door of hosts answers"
