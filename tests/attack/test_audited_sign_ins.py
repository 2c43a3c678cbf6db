"""Refused sign-ins are recorded: each kind with its reason, bounded however many there are, and without a secret."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from unittest.mock import patch

from structlog.testing import capture_logs

from foqs.host.audit import trail
from foqs.host.audit.sums import ADDRESSES_MAX, OTHER_NAMES
from foqs.host.audit.trail import Audit
from foqs.model import access_tokens
from foqs.model.access import AccessMode
from foqs.model.audit import SIGN_IN, AuditNote, AuditRecord
from foqs.transport.bounds import TransportLimits
from foqs.transport.server import ThriftServer
from foqs.wire.codec import Codec, structs
from tests.support.front_door import enqueue_request
from tests.support.sign_in_world import START_MS, SWEEP_MS, SignInWorld, log_in, sign_in_world


class Rows:
    """Keeps what a host writes to its meta database."""

    def __init__(self) -> None:
        self.found: list[AuditRecord] = []

    def write(self, records: list[AuditRecord]) -> None:
        self.found += records


class AuditedWorld:
    """A server whose refused sign-ins go to the audit of a host, with a clock that tests move."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.rows = Rows()
        self.audit = Audit(
            self.rows, "a#1", lambda: self.now_ms, lambda: self.now_ms / 1000, lambda name: None,
            (f"r-{number}" for number in count()), lambda *refusal: None,
        )  # fmt: skip
        self.logged: list[dict[str, object]] = []

    def told(self) -> list[AuditRecord]:
        """All records so far, those whose windows are open as if they had ended now."""
        for told in self.audit._sums.end_all():
            self.audit._publish(*told)
        return list(self.audit._waiting)

    def counts(self) -> Counter[tuple[str, str, str]]:
        found: Counter[tuple[str, str, str]] = Counter()
        for record in self.told():
            assert record.verb == SIGN_IN
            found[record.principal, record.credential, record.outcome] += record.count
        return found


@asynccontextmanager
async def audited(
    mode: AccessMode = AccessMode.ENFORCED, bounds: TransportLimits | None = None
) -> AsyncIterator[tuple[SignInWorld, AuditedWorld]]:
    made, of_server = AuditedWorld(), ThriftServer.__init__

    def init(self: ThriftServer, *arguments: object, **named: object) -> None:
        of_server(self, *arguments, note_refusal=made.audit.sign_in_refused, **named)  # type: ignore[arg-type]

    with patch.object(ThriftServer, "__init__", init), capture_logs() as logged:
        made.logged = logged  # type: ignore[assignment]
        async with sign_in_world(mode, bounds=bounds) as w:
            yield w, made


async def test_each_kind_of_refused_sign_in_is_recorded_with_its_reason() -> None:
    async with audited() as (w, a), w.connect() as client:
        w.book.grant("mailer", {"ns": "worker"})
        w.book.grant("other", {})
        ends, gone, good = (w.book.token("mailer", ends_at_ms) for ends_at_ms in (START_MS + 1, 0, 0))
        of_other, disabled = w.book.token("other"), w.book.token("other")
        ids = {one: access_tokens.parse(one).id for one in (ends, gone, good, of_other, disabled)}
        w.book.now_ms += 2
        w.book.revoke(gone)
        for wrong in ("x", ends, gone):
            assert (await log_in(client, wrong)).error is not None
        assert (await client.call("enqueue", enqueue_request())).error is not None
        w.shown.names = ("foqs://unknown",)
        async with w.connect() as shown:
            assert (await shown.call("enqueue", enqueue_request())).error is not None
        w.shown.names = None
        assert (await log_in(client, good)).error is None
        assert (await log_in(client, of_other)).error is not None
        w.book.enable("other", enabled=False)
        async with w.connect() as late:
            assert (await log_in(late, disabled)).error is not None
        assert a.counts() == {
            ("nobody", "", "PERMISSION_DENIED, no token"): 1,
            ("mailer", ids[ends], "PERMISSION_DENIED, expired token"): 1,
            ("nobody", ids[gone], "PERMISSION_DENIED, unknown token"): 1,
            ("nobody", "", "PERMISSION_DENIED, no credential"): 1,
            ("nobody", "foqs://unknown", "PERMISSION_DENIED, certificate of nobody"): 1,
            ("other", ids[of_other], "PERMISSION_DENIED, token of another principal"): 1,
            ("other", ids[disabled], "PERMISSION_DENIED, disabled principal"): 1,
        }
        assert {record.address for record in a.told()} == {"127.0.0.1"}
        told = str(a.told()) + str(a.logged)
        assert all(token[20:] not in told for token in ids)


async def test_a_call_with_a_credential_that_has_ended_is_recorded_with_its_principal() -> None:
    async with audited() as (w, a), w.connect() as client:
        w.book.grant("mailer", {"ns": "worker"})
        token = w.book.token("mailer")
        assert (await log_in(client, token)).error is None
        sign_in = next(iter(w.server._table.connections)).calls.sign_in  # type: ignore[union-attr]
        w.book.revoke(token)
        sign_in.follow()  # As the sweep does, and a call comes before it closes the connection.
        assert (await client.call("enqueue", enqueue_request())).error is not None
        ended = ("mailer", access_tokens.parse(token).id, "PERMISSION_DENIED, credential ended")
        assert a.counts() == {ended: 1}
        assert a.told()[0].subject == "call=enqueue"


async def test_a_token_by_a_plain_connection_of_another_machine_is_recorded_and_its_text_is_not() -> None:
    async with audited() as (w, a):
        w.book.grant("mailer", {})
        token = w.book.token("mailer")
        w.shown.address = "10.0.0.9"
        async with w.connect() as client:
            assert (await log_in(client, token)).error is not None
        (record,) = a.told()
        assert (record.address, record.outcome) == ("10.0.0.9", "PERMISSION_DENIED, token without TLS")
        assert token[5:] not in str(a.told()) + str(a.logged)


async def test_a_principal_with_too_many_connections_is_recorded() -> None:
    bounds = TransportLimits(connections_per_principal_max=1, sweep_ms=SWEEP_MS)
    async with audited(bounds=bounds) as (w, a), w.connect() as one, w.connect() as two:
        w.book.grant("mailer", {})
        token = w.book.token("mailer")
        assert (await log_in(one, token)).error is None
        assert (await log_in(two, token)).error is not None
        assert a.counts() == {("mailer", "", "OVERLOADED, connections_per_principal_max"): 1}


async def test_a_flood_is_two_records_a_minute_for_each_reason_and_all_of_it_is_counted() -> None:
    async with audited() as (w, a):
        wrong = Codec().encode_call("authenticate", structs.AuthenticateRequest("x"), 1)
        for _ in range(5):
            async with w.connect("127.0.0.2") as client:
                await client.send_bytes(wrong * 1_000)
                try:
                    while True:
                        await client.receive()
                except (asyncio.IncompleteReadError, ConnectionError):
                    pass
        by_outcome = Counter[str]()
        for record in a.told():
            by_outcome[record.outcome] += record.count
        assert len(a.told()) <= 2 * 3
        assert by_outcome["PERMISSION_DENIED, no token"] >= 51
        assert by_outcome["OVERLOADED, refusals"] + by_outcome["OVERLOADED, sign_in_calls"] == 5


async def test_connections_that_are_turned_away_before_a_login_are_recorded() -> None:
    bounds = TransportLimits(unknown_connections_per_address_max=2, sweep_ms=SWEEP_MS)
    async with audited(bounds=bounds) as (w, a), w.connect("127.0.0.2"), w.connect("127.0.0.2"):
        for _ in range(3):
            async with w.connect("127.0.0.2") as client:
                assert await client.is_closed()
        assert a.counts() == {("nobody", "", "OVERLOADED, unknown_connections_per_address_max"): 3}


async def test_strangers_with_any_number_of_addresses_fill_neither_the_log_nor_the_table_nor_the_memory() -> None:
    a = AuditedWorld()
    with capture_logs() as logged:
        for number in range(5_000):
            a.audit.sign_in_refused(
                AuditNote(SIGN_IN, "PERMISSION_DENIED, no token", "nobody", "", f"fd00::{number:x}")
            )
        assert len(logged) == ADDRESSES_MAX + 1
        assert len(a.audit._sums) == ADDRESSES_MAX + 1
        told = a.told()
    assert sum(record.count for record in told) == 5_000
    assert [record.count for record in told if record.address == OTHER_NAMES] == [1, 5_000 - ADDRESSES_MAX - 1]
    a.now_ms += trail.SIGN_INS_WINDOW_MS
    await a.audit._end_windows()
    a.audit.sign_in_refused(AuditNote(SIGN_IN, "PERMISSION_DENIED, no token", "nobody", "", "10.9.9.9"))
    assert a.told()[-1].address == "10.9.9.9", "a minute later addresses are told again"


async def test_refused_sign_ins_leave_room_for_the_records_of_callers_who_are_somebody() -> None:
    a = AuditedWorld()
    for number in range(2 * trail.WAITING_MAX):
        a.audit.sign_in_refused(AuditNote(SIGN_IN, f"reason {number}", "nobody", "", "10.0.0.1"))
    assert a.audit.waiting_count == trail.WAITING_SIGN_INS_MAX
    a.audit.noted(AuditNote("reloadCertificates"))
    assert a.audit._waiting[-1].verb == "reloadCertificates"
