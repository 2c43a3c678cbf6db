"""Principals, grants, tokens, modes, the clock and outages of meta, in any order, against an oracle without bits.

The oracle has lists of what was said, and decides each call by the words of the documentation. It knows no mask, no
snapshot and no context.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast
from unittest.mock import Mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, precondition, rule

from foqs.model.access import AccessMode
from foqs.model.calls import CallContext
from foqs.model.errors import ErrorCode, NotFoundError
from foqs.transport.bounds import TransportLimits
from foqs.transport.connection import Connection
from foqs.transport.connection_table import ConnectionTable
from foqs.transport.entrance import Entrance
from foqs.transport.sign_ins import SignIns
from foqs.transport.tls.caller_tls import CALLER_TLS
from foqs.transport.verb_table import Verbs, request_ids
from foqs.wire.codec import LENGTH_BYTES, Codec, Reply, structs
from tests.support.sign_in_world import Book, Door

NAMES = ["a", "b"]
PATTERNS = ["jobs", "job*", "jobs.x", "*", "mail"]
NAMESPACES = ["jobs", "jobs.x", "job", "mail", "Jobs"]
MAY = {
    "producer": {"enqueue", "getNamespace"},
    "consumer": {"ack", "getNamespace"},
    "viewer": {"getNamespace"},
    "owner": {"enqueue", "ack", "getNamespace", "deleteNamespace", "getItem"},
    "monitor": {"listHosts"},
    "operator": {"listHosts", "getNamespace"},
    "admin": {"listHosts"},
}
"""What each role may, in words."""
OF_CLUSTER = {"listHosts"}
CALLS = {
    "enqueue": lambda namespace: structs.EnqueueRequest(namespace, []),
    "ack": lambda namespace: structs.AckRequest(namespace, []),
    "getNamespace": structs.GetNamespaceRequest,
    "deleteNamespace": structs.DeleteNamespaceRequest,
    "getItem": lambda namespace: structs.GetItemRequest(namespace, "1-1"),
    "listHosts": lambda namespace: structs.ListHostsRequest(),
}
_names, _patterns = st.sampled_from(NAMES), st.sampled_from(PATTERNS)
_places = st.integers(0, 5)
"""Choose one of the callers that are connected: one that has left would make a step of nothing."""
_grants = st.dictionaries(_patterns, st.sampled_from(sorted(MAY)), max_size=3)


@dataclass
class Said:
    """All that administrators have said."""

    mode: AccessMode = AccessMode.ENFORCED
    grants: dict[str, dict[str, str]] = field(default_factory=dict)
    disabled: set[str] = field(default_factory=set)
    tokens: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The principal of each token that was not revoked, and the end of the token."""

    def copied(self) -> Said:
        grants = {name: dict(one) for name, one in self.grants.items()}
        return Said(self.mode, grants, set(self.disabled), dict(self.tokens))

    def owner(self, token: str, now_ms: int) -> str | None:
        """The principal of a token that is worth something."""
        name, ends_at_ms = self.tokens.get(token, ("", 0))
        if name not in self.grants or name in self.disabled or 0 < ends_at_ms <= now_ms:
            return None
        return name

    def permits(self, name: str, verb: str, namespace: str) -> bool:
        for pattern, role in self.grants[name].items():
            everywhere = pattern == "*"
            fits = everywhere or (namespace.startswith(pattern[:-1]) if pattern[-1] == "*" else namespace == pattern)
            if verb in MAY[role] and (everywhere if verb in OF_CLUSTER else fits):
                return True
        return False


@dataclass(eq=False)
class Caller:
    connection: Connection
    transport: Any
    token: str = ""
    name: str = ""


class _Transport:
    """The end of a connection that a caller holds."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_closed = False

    def get_extra_info(self, name: str) -> Any:
        return {"peername": ("127.0.0.1", 1), "socket": Mock(), CALLER_TLS: None}[name]

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class AccessMachine(RuleBasedStateMachine):
    tokens = Bundle("tokens")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.book, self.codec = Book(), Codec()
        self.door = Door(self.book)
        self.said = Said()
        self.known = self.said.copied()
        self.live: list[Caller] = []
        self._turns = count()
        self.table: ConnectionTable = self.loop.run_until_complete(self._table())

    async def _table(self) -> ConnectionTable:
        many = 1 << 30
        bounds = TransportLimits(
            refusals_per_address_max=many, sign_in_calls_per_address_max=many, login_ms_max=1 << 40
        )
        verbs = Verbs(self._do, lambda host_id: False, self.codec, request_ids(0), self.door.check)
        sign_ins = SignIns(self.book, self.book.wall_ms, self.loop.time, bounds)
        entrances = [Entrance(bounds, sign_ins)]
        return ConnectionTable(verbs, self.codec, Mock(), bounds, cast(Any, self.door.queue), entrances)

    async def _do(self, context: CallContext, verb: str, request: Any) -> Any:
        self.door.check(context, verb, request)
        raise NotFoundError("it was let in")

    @initialize(target=tokens, grants=st.tuples(_grants, _grants), life_ms=st.sampled_from([0, 3]))
    def begin(self, grants: tuple[dict[str, str], dict[str, str]], life_ms: int) -> Any:
        """Two principals have a token each, and the first one two connections."""
        for name, one in zip(NAMES, grants, strict=True):
            self.grant(name, one)
        found = [self.make_token(name, life_ms) for name in NAMES]
        for token in (found[0], found[0], found[1]):
            self.log_in(self.connect(), token)
        return multiple(*found)

    def teardown(self) -> None:
        for caller in self.live:
            caller.connection.abort()
            caller.connection.connection_lost(None)
        self.loop.close()

    def _changed(self) -> None:
        """Meta was changed. The host hears of it, unless meta is away, and looks at its connections."""
        if not self.book.is_meta_away:
            self.known = self.said.copied()
        self._sweep()

    def _sweep(self) -> None:
        for _ in self.table.sweep():
            pass
        for caller in list(self.live):
            is_dead = bool(caller.token) and self.known.owner(caller.token, self.book.now_ms) != caller.name
            assert caller.transport.is_closed is is_dead, (caller.token, caller.name)
            if is_dead:
                self._lost(caller)
        for caller in self.live:
            for verb in CALLS:
                self.call(caller, verb, NAMESPACES[next(self._turns) % len(NAMESPACES)])

    def _lost(self, caller: Caller) -> None:
        caller.connection.connection_lost(None)
        self.live.remove(caller)

    def _call(self, caller: Caller, verb: str, request: Any) -> Reply:
        caller.connection.data_received(self.codec.encode_call(verb, request, 1))

        async def answered() -> None:
            while not caller.transport.written:  # noqa: ASYNC110 - one turn of the loop or two
                await asyncio.sleep(0)

        self.loop.run_until_complete(asyncio.wait_for(answered(), 20))
        return self.codec.decode_reply(caller.transport.written.pop()[LENGTH_BYTES:])

    # ---- administrators ----

    @rule(name=_names, grants=_grants)
    def grant(self, name: str, grants: dict[str, str]) -> None:
        known = {at: role for at, role in grants.items() if not MAY[role] & OF_CLUSTER or at == "*"}
        self.said.grants[name] = known
        self.said.disabled.discard(name)
        self.book.grant(name, known)
        self._changed()

    @rule(name=_names)
    def disable(self, name: str) -> None:
        if name in self.said.grants:
            self.said.disabled.add(name)
            self.book.enable(name, enabled=False)
            self._changed()

    @rule(name=_names)
    def enable(self, name: str) -> None:
        if name in self.said.grants:
            self.said.disabled.discard(name)
            self.book.enable(name, enabled=True)
            self._changed()

    @rule(name=_names)
    def delete(self, name: str) -> None:
        if name in self.said.grants:
            del self.said.grants[name]
            self.said.disabled.discard(name)
            self.said.tokens = {token: row for token, row in self.said.tokens.items() if row[0] != name}
            self.book.delete(name)
            self._changed()

    @rule(target=tokens, name=_names, life_ms=st.sampled_from([0, 1, 5, 1_000]))
    def make_token(self, name: str, life_ms: int) -> Any:
        if name not in self.said.grants:
            return multiple()
        ends_at_ms = self.book.now_ms + life_ms if life_ms else 0
        token = self.book.token(name, ends_at_ms)
        self.said.tokens[token] = (name, ends_at_ms)
        self._changed()
        return token

    @rule(token=tokens)
    def revoke(self, token: str) -> None:
        if token in self.said.tokens:
            del self.said.tokens[token]
            self.book.revoke(token)
            self._changed()

    @rule(mode=st.sampled_from(AccessMode))
    def set_mode(self, mode: AccessMode) -> None:
        self.said.mode = mode
        self.book.set_mode(mode)
        self._changed()

    # ---- the world ----

    @rule(ms=st.sampled_from([1, 4, 2_000]))
    def time_goes_on(self, ms: int) -> None:
        self.book.now_ms += ms
        self._sweep()

    @rule()
    def meta_goes_away(self) -> None:
        self.book.is_meta_away = True

    @rule()
    def meta_comes_back(self) -> None:
        self.book.is_meta_away = False
        self.book.read()
        self._changed()

    # ---- callers ----

    @rule()
    def connects(self) -> None:
        self.connect()

    def connect(self) -> Caller:
        caller = Caller(Connection(self.table), _Transport())
        caller.connection.connection_made(caller.transport)
        self.live.append(caller)
        return caller

    @precondition(lambda self: self.live)
    @rule(place=_places, token=tokens)
    def show(self, place: int, token: str) -> None:
        self.log_in(self._at(place), token)

    def log_in(self, caller: Caller, token: str) -> None:
        owner = self.known.owner(token, self.book.now_ms)
        is_taken = owner is not None and caller.name in ("", owner)
        reply = self._call(caller, "authenticate", structs.AuthenticateRequest(token))
        if is_taken:
            assert reply.error is None, reply.error
            assert reply.response.principal == owner
            caller.token, caller.name = token, owner or ""
        else:
            assert cast(Any, reply.error).code is ErrorCode.PERMISSION_DENIED

    def _at(self, place: int) -> Caller:
        return self.live[place % len(self.live)]

    @precondition(lambda self: self.live)
    @rule(place=_places, verb=st.sampled_from(sorted(CALLS)), namespace=st.sampled_from(NAMESPACES))
    def calls(self, place: int, verb: str, namespace: str) -> None:
        self.call(self._at(place), verb, namespace)

    def call(self, caller: Caller, verb: str, namespace: str) -> None:
        is_done = self.known.mode is not AccessMode.ENFORCED or (
            bool(caller.name) and self.known.permits(caller.name, verb, namespace)
        )
        error = cast(Any, self._call(caller, verb, CALLS[verb](namespace)).error)
        expected = ErrorCode.NOT_FOUND if is_done else ErrorCode.PERMISSION_DENIED
        assert error.code is expected, (caller.name, verb, namespace, error.message)

    @precondition(lambda self: self.live)
    @rule(place=_places)
    def ask(self, place: int) -> None:
        caller = self._at(place)
        nameless = "everybody" if self.known.mode is AccessMode.OPEN else "nobody"
        reply = self._call(caller, "whoAmI", structs.WhoAmIRequest())
        assert reply.response.principal == (caller.name or nameless)

    @precondition(lambda self: self.live)
    @rule(place=_places)
    def leave(self, place: int) -> None:
        caller = self._at(place)
        caller.connection.abort()
        self._lost(caller)

    @invariant()
    def connections_are_counted_once(self) -> None:
        sign_ins = self.table.entrances[0].sign_ins
        assert (
            sign_ins._unknown_count == sum(not caller.name for caller in self.live) == sum(sign_ins._unknown.values())
        )
        by_name = {name: sum(caller.name == name for caller in self.live) for name in NAMES}
        assert dict(sign_ins._by_principal) == {name: count for name, count in by_name.items() if count}


AccessMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestAccess = AccessMachine.TestCase
