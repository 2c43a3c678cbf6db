"""Floods of callers that are nobody: they get few answers and few lines of the log, and slow nobody down."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from structlog.testing import capture_logs

from foqs.model.access import AccessMode
from foqs.transport.bounds import LOGIN_FRAME_BYTES_MAX, SIGN_IN_CALLS_PER_SWEEP_MAX, TransportLimits
from foqs.wire.codec import Codec, structs
from tests.support.front_door import enqueue_request
from tests.support.sign_in_world import SignInWorld, log_in, sign_in_world

WHO_AM_I = Codec().encode_call("whoAmI", structs.WhoAmIRequest(), 1)


async def test_a_flood_of_wrong_tokens_gets_few_answers_and_few_lines_and_the_right_token_is_taken() -> None:
    async with sign_in_world() as w:
        w.book.grant("mailer", {})
        token = w.book.token("mailer")
        wrong = Codec().encode_call("authenticate", structs.AuthenticateRequest("foqs_" + "a" * 62), 1)
        answered = 0
        with capture_logs() as logs:
            for _ in range(10):
                async with w.connect("127.0.0.2") as client:
                    await client.send_bytes(wrong * 1_000)
                    try:
                        while True:
                            await client.receive()
                            answered += 1
                    except (asyncio.IncompleteReadError, ConnectionError):
                        pass
                    async with w.connect("127.0.0.2") as own, w.connect() as elsewhere:
                        assert (await log_in(own, token)).error is None
                        assert (await log_in(elsewhere, token)).error is None
        assert 0 < answered <= 100, "50 in a second, and a second may end in between"
        assert set(w.counts.errors) <= {"refusals", "sign_in_calls"}
        events = Counter(line["event"] for line in logs)
        assert 0 < events.pop("token_refused") <= 20, "10 in a second"
        assert set(events) <= {"further_tokens_refused", "further_connections_refused"}
        assert token not in str(logs)


async def test_calls_without_a_login_get_few_answers_in_one_turn() -> None:
    bounds = TransportLimits(refusals_per_address_max=1_000)
    async with sign_in_world(bounds=bounds) as w, w.connect() as client:
        await client.send_bytes(WHO_AM_I * 1_000)
        for _ in range(SIGN_IN_CALLS_PER_SWEEP_MAX):
            assert (await client.receive()).error is None
        assert await client.is_closed()
        assert w.counts.errors == ["sign_in_calls"]


@pytest.mark.parametrize("call", ["whoAmI", "unknown"])
async def test_an_address_without_a_login_gets_few_answers_over_many_connections(call: str) -> None:
    """Answers at once take no turn behind others, so that they would keep the event loop from everybody else."""
    sent = WHO_AM_I if call == "whoAmI" else WHO_AM_I.replace(b"whoAmI", b"whoAmX")
    async with sign_in_world() as w, w.connect() as elsewhere:
        answered = await answers_of_many(w, sent * 100, count=20)
        assert 0 < answered <= 150, "50 in a second, and two seconds may end in between"
        assert set(w.counts.errors) == {"refusals"}
        assert (await log_in(elsewhere, "x")).error is not None, "another address has its own"


@pytest.mark.parametrize("mode", [AccessMode.OPEN, AccessMode.ENFORCED])
@pytest.mark.parametrize("call", ["no token", "a token that is no text", "a broken struct"])
async def test_a_login_that_cannot_be_read_is_counted_as_a_refusal_is(call: str, mode: AccessMode) -> None:
    """The first login of a connection is not counted, so one that fails for its form must be."""
    bounds = TransportLimits(sign_in_calls_per_address_max=50)
    whole = Codec().encode_call("authenticate", structs.AuthenticateRequest("x" * 40), 1)
    match call:
        case "no token":
            sent = Codec().encode_call("authenticate", structs.AuthenticateRequest(None), 1)
        case "a token that is no text":
            sent = whole.replace(b"x" * 40, b"\xff" * 40)
        case _:
            sent = whole.replace(b"\x0b\x00\x01", b"\x63\x00\x01")
    assert sent != whole
    async with sign_in_world(mode, bounds=bounds) as w, w.connect() as elsewhere:
        w.book.grant("mailer", {})
        token = w.book.token("mailer")
        answered = await answers_of_many(w, sent * 100, count=20)
        assert answered <= 150, "50 in a second, and two seconds may end in between"
        assert (await log_in(elsewhere, token)).error is None


async def test_a_principal_that_asks_without_end_who_it_is_keeps_the_loop_from_nobody() -> None:
    bounds = TransportLimits(sign_in_calls_per_address_max=40)
    async with sign_in_world(bounds=bounds) as w, w.connect() as elsewhere:
        w.book.grant("mailer", {})
        token = w.book.token("mailer")
        first = Codec().encode_call("authenticate", structs.AuthenticateRequest(token), 1)
        for sent in (WHO_AM_I, first):
            answered = await answers_of_many(w, first + sent * 50, count=20)
            assert 20 <= answered <= 20 + 3 * 40, "the first call of each connection, and 40 in a second"
            assert (await log_in(elsewhere, token)).error is None
        assert set(w.counts.errors) == {"sign_in_calls"}


async def answers_of_many(w: SignInWorld, sent: bytes, *, count: int) -> int:
    """How many answers come to so many connections of one address that send this."""
    answered = 0
    for _ in range(count):
        async with w.connect("127.0.0.2") as client:
            await client.send_bytes(sent)
            try:
                client.end_sending()
                while True:
                    await client.receive()
                    answered += 1
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
    return answered


async def test_a_large_frame_of_an_address_that_gets_no_more_answers_closes_its_connection_and_nothing_else() -> None:
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    answered = 0
    large = Codec().encode_call("enqueue", enqueue_request(b"x" * LOGIN_FRAME_BYTES_MAX), 1)
    async with sign_in_world() as w, w.connect() as elsewhere:
        for _ in range(200):
            async with w.connect("127.0.0.2") as client:
                await client.send_bytes(large)
                answered += not await client.is_closed()
        assert (await log_in(elsewhere, "x")).error is not None
    assert 0 < answered <= 150, "50 in a second, and two seconds may end in between"
    assert set(w.counts.errors) == {"login_frame", "refusals"}
    assert failures == []
