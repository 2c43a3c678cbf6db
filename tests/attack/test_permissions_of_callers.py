"""What a caller may do and what it learns, through a real server: each verb, each bit, each refusal."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from foqs.contract.names import FIELDS, Checked, field_of
from foqs.contract.permissions import OF_NAMESPACE, Permission
from foqs.contract.verbs import VERBS
from foqs.host.verbs.namespace_verbs import NamespacePages
from foqs.model import limits
from foqs.model.access import AccessMode
from foqs.model.calls import CallContext
from foqs.model.errors import ErrorCode, FoqsError
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.model.principal import EVERYBODY, Principal
from foqs.transport.fair_scheduler import NO_TENANT
from foqs.wire.codec import METHODS, structs
from tests.support.raw_client import RawClient
from tests.support.sign_in_world import SignInWorld, log_in, sign_in_world

DENIED = ErrorCode.PERMISSION_DENIED
NEEDING = sorted(verb for verb, row in VERBS.items() if row.needs)
OF_NAMESPACES = [verb for verb in NEEDING if field_of(VERBS[verb].request.__name__, Checked.NAMESPACE)]
ALL = int(sum(Permission))


def request_of(verb: str, namespace: str) -> Any:
    """A request with all required fields, which names this namespace and nothing else that there is."""
    request, method = VERBS[verb].request(), METHODS[verb]
    for spec in request.thrift_spec.values():
        if spec[1] in method.required:
            setattr(request, spec[1], _value(spec))
    place = field_of(VERBS[verb].request.__name__, Checked.NAMESPACE)
    if place:
        setattr(request, place, namespace)
    return request


def _value(spec: Any) -> Any:
    kind = spec[0]
    if kind == 11:
        return "1-0"
    if kind == 15:
        return []
    return spec[2]() if kind == 12 else 1


def holder(bits: int) -> Principal:
    return Principal("mailer", bits, prefixes={"": bits})


async def logged_in(w: SignInWorld, client: RawClient, who: Principal) -> None:
    w.book.grant(who.name, {})
    token = w.book.token(who.name)
    w.book.hold(who)
    assert (await log_in(client, token)).error is None


def text_of(error: Any) -> str:
    assert isinstance(error, FoqsError), error
    assert error.request_id
    return re.sub(r" \(request [0-9a-z]+-[0-9]+\)$", "", error.message)


@pytest.mark.parametrize("verb", NEEDING)
async def test_a_verb_is_refused_without_any_single_one_of_its_bits_and_let_in_with_them(verb: str) -> None:
    needs = int(VERBS[verb].needs)
    async with sign_in_world() as w:
        for bit in Permission:
            async with w.connect() as client:
                await logged_in(w, client, holder(ALL & ~bit))
                error = (await client.call(verb, request_of(verb, "ns"))).error
                is_denied = isinstance(error, FoqsError) and error.code is DENIED
                assert is_denied is bool(bit & needs), (bit, error)
                if is_denied:
                    assert text_of(error).endswith(f"it lacks {bit.name}")
        async with w.connect() as client:
            await logged_in(w, client, holder(needs))
            error = (await client.call(verb, request_of(verb, "ns"))).error
            assert not (isinstance(error, FoqsError) and error.code is DENIED)


@pytest.mark.parametrize("verb", OF_NAMESPACES)
async def test_a_refusal_is_the_same_character_by_character_whether_the_namespace_is_there_or_not(verb: str) -> None:
    """And nothing is looked up for it, so its time is the same, too."""
    async with sign_in_world() as w, w.connect() as client:
        await logged_in(w, client, Principal("mailer", 0, {"mine": ALL}))
        there = (await client.call(verb, request_of(verb, "other"))).error
        del w.queue.namespaces["other"]
        gone = (await client.call(verb, request_of(verb, "other"))).error
        assert text_of(there) == text_of(gone)
        assert (there.code, there.nothing_done, there.retry_after_ms) == (gone.code, gone.nothing_done, None)
        assert there.code is DENIED
        assert not w.door.looked_up


async def test_only_whoever_holds_a_matching_grant_is_told_that_a_namespace_is_unknown() -> None:
    async with sign_in_world() as w, w.connect() as client:
        w.book.grant("mailer", {"mail*": "owner"})
        assert (await log_in(client, w.book.token("mailer"))).error is None
        for namespace, code in (("mails", ErrorCode.UNKNOWN_NAMESPACE), ("gone", DENIED), ("ns", DENIED)):
            reply = await client.call("getNamespace", structs.GetNamespaceRequest(namespace))
            assert reply.error.code is code, namespace


async def test_the_namespace_that_the_front_of_a_frame_names_is_not_believed() -> None:
    """The scheduler peeks at the first field. The check looks at the decoded request, in which the last one counts."""
    async with sign_in_world() as w, w.connect() as client:
        await logged_in(w, client, Principal("mailer", 0, {"ns": ALL}))
        frame = bytearray(client._codec.encode_call("getNamespace", structs.GetNamespaceRequest("ns"), 3))
        field = b"\x0b\x00\x01\x00\x00\x00\x05other"
        frame[-2:-2] = field
        frame[:4] = (len(frame) - 4).to_bytes(4, "big")
        await client.send_bytes(bytes(frame))
        reply = await client.receive()
        assert reply.error.code is DENIED
        assert "'other'" in reply.error.message


async def test_calls_that_name_the_namespaces_of_others_take_no_turns_of_theirs() -> None:
    """And none of each: whoever names a thousand namespaces would have a thousand shares of the host."""
    async with sign_in_world() as w, w.connect() as client, w.connect() as open_to_all:
        await logged_in(w, client, Principal("mailer", 0, {"ns": int(Permission.CONSUME)}))
        scheduler = w.server._table.scheduler  # type: ignore[union-attr]
        tenants: list[int] = []

        def queue_of(tenant: int, *more: Any) -> Any:
            tenants.append(tenant)
            return found(tenant, *more)

        found = scheduler.queue_of
        with patch.object(scheduler, "queue_of", queue_of):
            for namespace in ("ns", "other", "gone", ""):
                for verb in ("ack", "enqueue", "getNamespace"):
                    await client.call(verb, request_of(verb, namespace))
            assert tenants == [1] * 3 + [NO_TENANT] * 9
            tenants.clear()
            for mode in (AccessMode.PERMISSIVE, AccessMode.OPEN):
                w.book.set_mode(mode)
                await w.swept()
                for one in (client, open_to_all):
                    assert (await one.call("ack", structs.AckRequest("other", []))).error is None
            assert tenants == [2] * 4, "what is done is work of its namespace"


async def test_an_owner_cannot_raise_its_quota_or_change_its_tier() -> None:
    async with sign_in_world() as w, w.connect() as client:
        w.book.grant("mailer", {"ns": "owner"})
        assert (await log_in(client, w.book.token("mailer"))).error is None
        for settings in ({"enqueues_per_minute_max": 9}, {"tier": "fast"}, {"payload_bytes_max": 1 << 30}):
            request = structs.UpdateNamespaceRequest("ns", structs.NamespaceSettings(**settings))
            error = (await client.call("updateNamespace", request)).error
            assert text_of(error) == "mailer may not call updateNamespace in namespace 'ns': it lacks OPERATE"
        request = structs.UpdateNamespaceRequest("ns", structs.NamespaceSettings(lease_ms_default=5_000))
        assert (await client.call("updateNamespace", request)).error is None


async def test_a_client_cannot_make_the_calls_of_hosts_whatever_it_holds() -> None:
    async with sign_in_world() as w, w.connect() as client:
        await logged_in(w, client, holder(-1))
        for verb in ("peekItems", "getActiveTopics", "planExport", "getRates", "getHistory"):
            request = request_of(verb, "ns")
            request.shard_ids = [1]
            reply = await client.call(verb, request)
            assert reply.error.code is ErrorCode.INVALID_ARGUMENT
            assert "shard_ids is set" in reply.error.message


async def test_each_request_id_is_another_and_is_in_the_text() -> None:
    async with sign_in_world() as w, w.connect() as client:
        errors = [(await client.call("ack", structs.AckRequest("ns", []))).error for _ in range(5)]
        ids = [error.request_id for error in errors]
        assert len(set(ids)) == 5
        assert len({one.partition("-")[0] for one in ids}) == 1, "all are of this process"
        for error in errors:
            assert error.message.endswith(f" (request {error.request_id})")


# ---- lists ----


class Meta:
    """The namespaces of the meta database, which counts how much is read."""

    def __init__(self, names: list[str]) -> None:
        self.namespaces = self
        self.names = sorted(names)
        self.reads_count = 0

    def page(self, prefix: str, after: str, limit: int) -> list[Namespace]:
        self.reads_count += 1
        found = [name for name in self.names if name.startswith(prefix) and name > after]
        return [Namespace(1, name, NamespaceSettings(), 0) for name in found[:limit]]

    async def run(self, work: Any) -> Any:
        return work(self)


async def pages(meta: Meta, who: Principal, prefix: str = "", limit: int = 3, **context: Any) -> list[list[str]]:
    verbs, found, token = NamespacePages(cast(Any, SimpleNamespace(calls=meta))), list[list[str]](), ""
    while True:
        request = structs.ListNamespacesRequest(prefix, limit, token)
        page = await verbs.list_namespaces(CallContext("a", principal=who, **context), request)
        found.append([one.name for one in page.namespaces])
        token = page.next_page_token
        if not token:
            return found
        assert token == found[-1][-1], "a token is a name that was shown"


def observer(*names: str, prefixes: tuple[str, ...] = ()) -> Principal:
    bits = int(Permission.OBSERVE)
    return Principal("mailer", 0, dict.fromkeys(names, bits), dict.fromkeys(prefixes, bits))


async def test_a_list_shows_what_the_caller_may_observe_and_its_pages_are_full() -> None:
    foreign = [f"n{number:05}" for number in range(5_000)]
    meta = Meta([*foreign, "a", "b.1", "b.2", "n00500x", "n04999x", "z"])
    who = observer("a", "z", "n00500x", "gone", prefixes=("b.", "n04999x"))
    assert await pages(meta, who) == [["a", "b.1", "b.2"], ["n00500x", "n04999x", "z"]]
    assert await pages(meta, who, limit=4) == [["a", "b.1", "b.2", "n00500x"], ["n04999x", "z"]]
    assert await pages(meta, who, "n") == [["n00500x", "n04999x"]]
    assert await pages(meta, who, "c") == [[]]
    assert await pages(meta, observer("gone")) == [[]]


async def test_a_list_for_whoever_observes_everything_reads_one_page_for_each() -> None:
    meta = Meta([f"n{number}" for number in range(9)])
    for who in (EVERYBODY, observer(prefixes=("",))):
        meta.reads_count = 0
        assert [len(page) for page in await pages(meta, who)] == [3, 3, 3]
        assert meta.reads_count == 3
    assert [len(page) for page in await pages(meta, Principal("nobody"), is_permissive=True)] == [3, 3, 3]


async def test_a_list_reads_so_many_namespaces_at_most_as_a_cluster_can_have() -> None:
    class Endless(Meta):
        def page(self, prefix: str, after: str, limit: int) -> list[Namespace]:
            self.reads_count += 1
            return [Namespace(1, "foreign", NamespaceSettings(), 0)] * limit

    meta = Endless([])
    assert await pages(meta, observer("mine")) == [[]]
    assert meta.reads_count == limits.NAMESPACES_MAX // limits.PAGE_ITEMS_MAX + 1


def test_every_field_that_a_connection_checks_is_of_a_verb_that_the_connection_does() -> None:
    of_connection = {struct for struct, fields in FIELDS.items() if Checked.CONNECTION in fields.values()}
    assert of_connection == {"EndWaitRequest", "AuthenticateRequest"}
    assert int(OF_NAMESPACE) & ALL == int(OF_NAMESPACE)


async def test_in_the_open_mode_nobody_is_refused_anything() -> None:
    async with sign_in_world(AccessMode.OPEN) as w, w.connect() as client:
        for verb in NEEDING:
            error = (await client.call(verb, request_of(verb, "ns"))).error
            assert not (isinstance(error, FoqsError) and error.code is DENIED), verb
