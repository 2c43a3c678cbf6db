"""A server whose principals a test makes by hand: their grants, tokens, certificates, the mode and the clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast
from unittest.mock import patch

from foqs.cluster.routing.permission_check import check_permission
from foqs.contract.audited import namespace_of
from foqs.host.access.refused_calls import Refusals
from foqs.host.access.snapshot import AccessSnapshot
from foqs.model import access_tokens
from foqs.model.access import AccessGrant, AccessMode, AccessRows, CertificateRow, Credential, PrincipalRow, TokenRow
from foqs.model.calls import CallContext
from foqs.model.errors import PermissionDeniedError
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.model.principal import Principal
from foqs.transport.bounds import TransportLimits
from foqs.transport.connection import Connection
from foqs.transport.server import ThriftServer
from foqs.transport.tls.caller_tls import CALLER_TLS, CallerTls
from foqs.transport.tls.layer import PortTls
from foqs.wire.codec import Reply, structs
from tests.support.fake_queue import FakeQueue
from tests.support.front_door import Counts, World, dequeue_request
from tests.support.raw_client import RawClient

START_MS = 1_800_000_000_000
SWEEP_MS = 10


class Book:
    """Has the snapshot, as the book of a host has. While `is_meta_away` it learns nothing."""

    def __init__(self, mode: AccessMode = AccessMode.ENFORCED) -> None:
        self.now_ms = START_MS
        self.is_meta_away = False
        self.used: list[tuple[str, int]] = []
        """The tokens that were taken, with the times."""
        self.principals: dict[str, PrincipalRow] = {}
        self.tokens: dict[str, TokenRow] = {}
        self.certificates: dict[str, CertificateRow] = {}
        self._version = self._made_count = 0
        self._mode = mode
        self.snapshot = AccessSnapshot.EMPTY
        self.read()

    def note_used(self, credential: Credential, now_ms: int) -> None:
        self.used.append((credential.id, now_ms))

    def wall_ms(self) -> int:
        return self.now_ms

    def read(self) -> None:
        """Read what is stored now, as a host does at each heartbeat, if meta is there."""
        self._version += 1
        if not self.is_meta_away:
            rows = (tuple(one.values()) for one in (self.principals, self.tokens, self.certificates))
            self.snapshot = AccessSnapshot(AccessRows(self._mode, self._version, *rows))  # type: ignore[arg-type]

    def set_mode(self, mode: AccessMode) -> None:
        self._mode = mode
        self.read()

    def grant(self, name: str, grants: Mapping[str, str]) -> None:
        """Make a principal, or change its grants: roles by NAME, PREFIX* or *."""
        made = tuple(AccessGrant(where, tuple(roles.split())) for where, roles in grants.items())
        self.principals[name] = PrincipalRow(name, True, made, START_MS)
        self.read()

    def hold(self, who: Principal) -> None:
        """Let this principal hold bits that no role has, until the next change."""
        self.grant(who.name, {})
        self.snapshot._made[who.name] = who

    def enable(self, name: str, *, enabled: bool) -> None:
        self.principals[name] = self.principals[name]._replace(enabled=enabled)
        self.read()

    def delete(self, name: str) -> None:
        """Delete a principal with all that it can show."""
        del self.principals[name]
        self.tokens = {key: row for key, row in self.tokens.items() if row.principal != name}
        self.certificates = {key: row for key, row in self.certificates.items() if row.principal != name}
        self.read()

    def token(self, name: str, expires_at_ms: int = 0) -> str:
        """Make a token of a principal, and return its text."""
        self._made_count += 1
        text = access_tokens.new_token(self._made_count.to_bytes(4, "big") * (access_tokens.RANDOM_BYTES // 4))
        made = access_tokens.parse(text)
        self.tokens[made.id] = TokenRow(made.id, name, access_tokens.hash_of(made), "", START_MS, "", expires_at_ms, 0)
        self.read()
        return text

    def revoke(self, token: str) -> None:
        del self.tokens[access_tokens.parse(token).id]
        self.read()

    def certificate(self, san: str, name: str) -> None:
        self.certificates[san] = CertificateRow(san, name, "", START_MS, "")
        self.read()

    def remove_certificate(self, san: str) -> None:
        del self.certificates[san]
        self.read()


class Door:
    """Checks calls as the router does, and has a fake queue do them."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.queue = FakeQueue()
        self.refusals = Refusals()
        self.looked_up: list[str] = []
        """The namespaces that were looked for, by calls that were let through."""

    def number_of(self, namespace_name: str) -> int | None:
        found = self.queue.number_by_name.get(namespace_name.encode())
        return None if found is None else int(found)

    def check(self, context: CallContext, verb: str, request: Any) -> None:
        try:
            check_permission(context, verb, request, self.number_of)
        except PermissionDeniedError:
            if not context.is_permissive:
                raise
            self.refusals.note(context.principal.name, verb, namespace_of(request), self.book.now_ms)

    def call(self, context: CallContext, verb: str, request: Any) -> Awaitable[Any]:
        self.check(context, verb, request)
        self.looked_up.append(namespace_of(request))
        return self.queue.call(context, verb, request)


class Shown:
    """What the connections from now on show of their callers."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] | None = None
        """The names in the client certificate, which the TLS layer has verified; None without TLS."""
        self.ends_at_ms = 0
        """The end of that certificate."""
        self.address = ""
        """The address; empty for the true one."""


class _Transport:
    """The transport of a connection as the TLS layer gives it."""

    def __init__(self, transport: Any, shown: Shown) -> None:
        self._transport = transport
        self._known: dict[str, Any] = {}
        if shown.names is not None:
            self._known[CALLER_TLS] = CallerTls(b"", shown.names, ends_at_ms=shown.ends_at_ms)
        if shown.address:
            self._known["peername"] = (shown.address, 1)

    def get_extra_info(self, name: str) -> Any:
        return self._known[name] if name in self._known else self._transport.get_extra_info(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Connection(Connection):
    def __init__(self, table: Any, entrance: Any, shown: Shown) -> None:
        super().__init__(table, entrance)
        self._shown = shown

    def connection_made(self, transport: Any) -> None:
        super().connection_made(cast(Any, _Transport(transport, self._shown)))


class SignInWorld(World):
    """A running server, and the book that its principals are in."""

    def __init__(self, server: ThriftServer, door: Door, counts: Counts, shown: Shown) -> None:
        super().__init__(server, door.queue, counts)
        self.shown = shown
        self.book = door.book
        self.door = door

    async def swept(self) -> None:
        """Wait until every connection has been looked at anew."""
        seen = 0
        sign_ins = self.server._table.entrances[0].sign_ins  # type: ignore[union-attr]
        before = sign_ins.end_second

        def counted() -> None:
            nonlocal seen
            seen += 1
            before()

        sign_ins.end_second = counted  # type: ignore[method-assign]
        try:
            async with asyncio.timeout(20):
                while seen < 2:  # noqa: ASYNC110 - the sweep tells nobody
                    await asyncio.sleep(0.001)
        finally:
            sign_ins.end_second = before  # type: ignore[method-assign]


@asynccontextmanager
async def sign_in_world(
    mode: AccessMode = AccessMode.ENFORCED,
    *,
    bounds: TransportLimits | None = None,
    tokens_without_tls: bool = False,
    tls: PortTls | None = None,
    **ports: Any,
) -> AsyncIterator[SignInWorld]:
    door, counts = Door(Book(mode)), Counts()
    for number, name in enumerate(("ns", "other"), 1):
        door.queue.namespaces[name] = Namespace(number, name, NamespaceSettings(), START_MS)
    server = ThriftServer(
        door.call, address="127.0.0.1", port=0, namespaces=door.queue, metrics=counts,
        identities=door.book, check=door.check, wall_ms=door.book.wall_ms, tokens_without_tls=tokens_without_tls,
        tls=tls, bounds=bounds or TransportLimits(sweep_ms=SWEEP_MS), **ports,
    )  # fmt: skip
    shown = Shown()
    with patch("foqs.transport.server.Connection", lambda table, entrance: _Connection(table, entrance, shown)):
        await server.start()
        try:
            yield SignInWorld(server, door, counts, shown)
        finally:
            await server.stop()
            assert counts.open == 0


async def log_in(client: RawClient, token: str) -> Reply:
    return await client.call("authenticate", structs.AuthenticateRequest(token))


async def who(client: RawClient) -> Any:
    reply = await client.call("whoAmI", structs.WhoAmIRequest())
    assert reply.error is None, reply.error
    return reply.response


def mailer(w: SignInWorld, roles: str = "worker", expires_at_ms: int = 0) -> str:
    """Make the principal, and return its token."""
    w.book.grant("mailer", {"ns": roles})
    return w.book.token("mailer", expires_at_ms)


def client_counts(w: SignInWorld) -> tuple[int, int]:
    """The connections that are not logged in, and those that are."""
    table = w.server._table
    assert table is not None
    sign_ins = table.entrances[0].sign_ins
    return sign_ins._unknown_count, sign_ins._by_principal.total()


async def waits(w: SignInWorld, client: RawClient, seqid: int = 9) -> None:
    """Begin a long poll."""
    w.queue.long_poll_began.clear()
    client.send("dequeue", dequeue_request(1, wait_ms=30_000), seqid)
    await asyncio.wait_for(w.queue.long_poll_began.wait(), 20)
