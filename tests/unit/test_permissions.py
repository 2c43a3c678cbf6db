"""The router does a call only if its caller holds the bits that the verb needs: docs/decisions/0041."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foqs.cluster.ownership.owner_map import OwnerMap
from foqs.cluster.routing.permission_check import check_permission
from foqs.cluster.routing.router import Router
from foqs.contract import requests as of
from foqs.contract.audited import AuditKind, audit_kind, namespace_of
from foqs.contract.names import FIELDS, Checked, field_of
from foqs.contract.permissions import COSTLY_SETTINGS, OF_CLUSTER, OF_NAMESPACE, ROLES, Permission, needed_by_settings
from foqs.contract.verbs import VERBS, Call, VerbRow, Whole
from foqs.model.calls import CallContext
from foqs.model.errors import ErrorCode, PermissionDeniedError
from foqs.model.jobs import COPY_ID_BYTES, copy_job_id
from foqs.model.principal import EVERYBODY, Principal
from foqs.wire.codec import METHODS

DONE = object()
ALL = OF_NAMESPACE | OF_CLUSTER
NEEDING = sorted(verb for verb, row in VERBS.items() if row.needs)
OF_ONE_PLACE = [verb for verb in NEEDING if verb != "listNamespaces"]
"""The verbs of one namespace, or of the cluster. The other one shows what its caller may observe."""


class Door:
    """A router that notes which verbs are done, without a host."""

    def __init__(self, **numbers: int) -> None:
        """`numbers` has the namespaces that there are."""
        self.numbers = numbers
        self.done: list[str] = []
        self.audits: list[str] = []
        table = {verb: self._method(verb) for verb in VERBS}
        routes = SimpleNamespace(number_of=self.number_of, is_unknown=lambda name: False)
        self.noted: list[tuple[str, str, str]] = []
        """Calls without the permissions that they need, whether they were done or not."""
        self._router = Router(table, table, {}, cast(Any, routes), OwnerMap(me="me"), cast(Any, None), self)

    def refused(self, context: CallContext, verb: str, request: Any, error: PermissionDeniedError) -> None:
        self.noted.append((context.principal.name, verb, namespace_of(request)))

    def audited(self, context: CallContext, verb: str, request: Any, call: Call) -> Any:
        self.audits.append(verb)
        return call(context, verb, request)

    def number_of(self, namespace_name: str) -> int | None:
        return self.numbers.get(namespace_name)

    def _method(self, verb: str) -> Any:
        async def do(context: CallContext, request: Any) -> object:
            self.done.append(verb)
            return DONE

        return do

    def call(self, who: Principal, verb: str, request: Any, peer: str = "", *, is_permissive: bool = False) -> object:
        async def called() -> object:
            context = CallContext("10.0.0.1", peer=peer, principal=who, is_permissive=is_permissive)
            return await self._router.call(context, verb, request)

        return asyncio.run(called())

    def refusal(self, who: Principal, verb: str, request: Any) -> PermissionDeniedError:
        before = list(self.done)
        with pytest.raises(PermissionDeniedError) as caught:
            self.call(who, verb, request)
        assert self.done == before, "it is refused before anything is done"
        return caught.value


def request_of(verb: str, namespace_name: str = "orders") -> Any:
    """A request of the verb in this namespace, or for all namespaces that begin so."""
    struct = VERBS[verb].request
    name = field_of(struct.__name__, Checked.NAMESPACE) or field_of(struct.__name__, Checked.NAMESPACES)
    return struct(**{name: namespace_name}) if name else struct()


def holder(bits: Permission | int, *, prefix: str = "orders", cluster: int | None = None) -> Principal:
    return Principal("mailer", int(bits if cluster is None else cluster), prefixes={prefix: int(bits)})


# ---- each verb ----


@pytest.mark.parametrize("verb", NEEDING)
def test_a_verb_is_done_with_exactly_its_bits_and_refused_without_any_one_of_them(verb: str) -> None:
    door, needs = Door(orders=1), VERBS[verb].needs
    assert door.call(holder(needs), verb, request_of(verb)) is DONE
    assert door.done == [verb]
    for bit in Permission:
        if bit & needs:
            error = door.refusal(holder(ALL & ~bit), verb, request_of(verb))
            assert error.message.endswith(f"it lacks {bit.name}")
            assert (error.code, error.nothing_done, error.retryable) == (ErrorCode.PERMISSION_DENIED, True, False)
        else:
            assert door.call(holder(ALL & ~bit), verb, request_of(verb)) is DONE


def test_the_job_that_copies_items_for_a_new_group_is_changed_by_those_who_can_create_groups() -> None:
    door, copy = Door(orders=1), copy_job_id(bytes(COPY_ID_BYTES))
    producer = holder(Permission.ENQUEUE | Permission.OBSERVE)
    assert door.call(producer, "updateJob", of.UpdateJobRequest("orders", "copy-of-last-night")) is DONE
    for change in ({"state": 2}, {"items_per_second_max": 1}):
        error = door.refusal(producer, "updateJob", of.UpdateJobRequest("orders", copy, **change))
        assert error.message.endswith("it lacks MANAGE")
    manager = holder(Permission.ENQUEUE | Permission.MANAGE)
    assert door.call(manager, "updateJob", of.UpdateJobRequest("orders", copy, state=2)) is DONE
    assert audit_kind("updateJob", of.UpdateJobRequest("orders", copy, state=2)) is AuditKind.CHANGE
    assert audit_kind("updateJob", of.UpdateJobRequest("orders", "import-7", state=2)) is None


def test_an_ack_of_a_bare_id_needs_alter_and_is_audited_and_one_of_receipts_is_not() -> None:
    door, consumer = Door(orders=1), holder(Permission.CONSUME | Permission.OBSERVE)
    receipts, bare = of.AckRequest("orders", ["1-1:1", "?"]), of.AckRequest("orders", ["1-1:1", "2-1"])
    assert door.call(consumer, "ack", receipts) is DONE
    error = door.refusal(consumer, "ack", bare)
    assert "it lacks ALTER for bare item ids" in error.message
    assert "receipts" in error.message
    assert "deleteItems" in error.message
    assert door.audits == []
    assert door.call(EVERYBODY, "ack", bare) is DONE
    assert door.audits == []
    assert door.call(holder(Permission.CONSUME | Permission.ALTER), "ack", bare) is DONE
    assert door.call(consumer, "ack", bare, peer="other:1") is DONE, "the other host has checked and recorded it"
    assert door.audits == ["ack"]
    assert audit_kind("ack", bare) is AuditKind.OF_ITEMS
    assert audit_kind("ack", receipts) is None


@pytest.mark.parametrize(
    ("verb", "receipts", "bare"),
    [
        ("nack", of.NackRequest("orders", [of.Nack("1-1:1")]), of.NackRequest("orders", [of.Nack("1-1")])),
        ("extendLease", of.ExtendRequest("orders", ["1-1:1"], 1_000), of.ExtendRequest("orders", ["1-1"], 1_000)),
        (
            "extendLease",
            of.ExtendRequest("orders", [], 1_000, ["1-1:1"]),
            of.ExtendRequest("orders", [], 1_000, ["1-1"]),
        ),
    ],
)
def test_bare_ids_reach_the_leases_of_others_with_alter_alone(verb: str, receipts: object, bare: object) -> None:
    door, consumer = Door(orders=1), holder(Permission.CONSUME)
    assert door.call(consumer, verb, receipts) is DONE
    assert "it lacks ALTER for bare item ids" in door.refusal(consumer, verb, bare).message
    assert door.call(EVERYBODY, verb, bare) is DONE
    assert door.audits == []
    assert door.call(holder(Permission.CONSUME | Permission.ALTER), verb, bare) is DONE
    assert door.audits == [verb]


def test_each_verb_needs_the_bits_that_the_decision_gives_it() -> None:
    """Written down a second time, so that nobody makes a verb need less without saying so here."""
    by_bit = {
        "ENQUEUE": "enqueue createJob updateJob",
        "CONSUME": "dequeue ack nack extendLease",
        "OBSERVE": "getActiveTopics getShardMap getNamespace listNamespaces getTopicPolicy listTopicPolicies getJob"
        " listJobs listGroups listConsumers getRates getHistory explain",
        "READ": "peekItems getItem listDeadLetters planExport exportItems",
        "ALTER": "deleteItems forgetDedupIds redriveDeadLetters purgeDeadLetters setTopicPolicy setTopicPolicies"
        " releaseLeases createBulkJob",
        "MANAGE": "createNamespace updateNamespace deleteNamespace createGroup deleteGroup",
        "WATCH": "listShards listHosts getHostStatus",
        "OPERATE": "addShard updateShard removeShard ungateSlot recoverNamespace",
        "ACCESS": "createPrincipal updatePrincipal deletePrincipal listPrincipals createToken revokeToken listTokens"
        " addCertificate removeCertificate setAccessMode getAccess listRefusals listAudit",
    }
    needs = {verb: Permission[bit] for bit, verbs in by_bit.items() for verb in verbs.split()}
    assert {verb: VERBS[verb].needs for verb in NEEDING} == needs


def test_whatever_shows_payloads_needs_to_read_or_to_consume() -> None:
    """By the results themselves: a verb that comes to show payloads needs it, too."""
    showing = {
        verb
        for verb in VERBS
        if "payload" in structs_of(METHODS[verb].result.thrift_spec[0][2] if VERBS[verb].result else None)
    }
    assert showing == {"dequeue", "peekItems", "getItem", "listDeadLetters", "exportItems"}
    for verb in showing:
        assert VERBS[verb].needs in (Permission.READ, Permission.CONSUME), verb


def structs_of(struct: Any, seen: frozenset[Any] = frozenset()) -> list[str]:
    """The names of all fields of a struct of the wire, and of those in its fields."""
    if not hasattr(struct, "thrift_spec") or struct in seen:
        return []
    found: list[str] = []
    for spec in struct.thrift_spec.values():
        found.append(spec[1])
        for kind in spec[2:3]:
            found += [name for one in _kinds(kind) for name in structs_of(one, seen | {struct})]
    return found


def _kinds(kind: Any) -> list[Any]:
    """The types in the type of a field, which of a list or a map are in pairs of pairs."""
    return [found for one in kind for found in _kinds(one)] if isinstance(kind, tuple) else [kind]


def test_a_verb_that_needs_nothing_is_done_for_whoever_holds_nothing() -> None:
    door, free = Door(), sorted(VERBS.keys() - set(NEEDING))
    assert free == sorted(
        ["greet", "join", "hello", "prove", "report", "seek", "hint", "getFacts", "endWait", "authenticate", "whoAmI"]
    )
    for verb in free:
        assert door.call(Principal("nobody"), verb, VERBS[verb].request()) is DONE


def test_a_row_that_does_not_say_what_its_verb_needs_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="needs"):
        cast(Any, VerbRow)(of.AckRequest, None, Whole.HERE)


def test_everybody_holds_everything_and_passes_the_check_that_the_router_leaves_out() -> None:
    door = Door()
    for verb in VERBS:
        check_permission(CallContext("a", principal=EVERYBODY), verb, request_of(verb), door.number_of)
        assert door.call(EVERYBODY, verb, request_of(verb)) is DONE
    with pytest.raises(TypeError, match="principal"):
        cast(Any, CallContext)("a")


def test_in_the_permissive_mode_what_would_be_refused_is_noted_and_done() -> None:
    door, who = Door(orders=1), holder(Permission.CONSUME, cluster=0)
    for verb in ("ack", "enqueue", "listHosts", "listNamespaces", "greet"):
        assert door.call(who, verb, request_of(verb), is_permissive=True) is DONE
    assert door.done == ["ack", "enqueue", "listHosts", "listNamespaces", "greet"]
    assert door.noted == [
        ("mailer", "enqueue", "orders"),
        ("mailer", "listHosts", ""),
        ("mailer", "listNamespaces", ""),
    ]


def test_what_another_host_has_handed_on_is_not_checked_again() -> None:
    door = Door(orders=1)
    for verb in VERBS:
        assert door.call(Principal("nobody"), verb, request_of(verb), peer="b#1") is DONE


# ---- the namespace of a request ----


@pytest.mark.parametrize("verb", OF_ONE_PLACE)
def test_no_other_field_than_the_namespace_can_name_the_namespace(verb: str) -> None:
    """Every text of the request is the name of a namespace in which the caller holds everything, but for one."""
    request = VERBS[verb].request()
    for name in request.__dict__:
        setattr(request, name, "mine")
    fields = FIELDS[VERBS[verb].request.__name__]
    place = next((name for name, check in fields.items() if check in (Checked.NAMESPACE, Checked.NAMESPACES)), "")
    if place:
        setattr(request, place, "orders")
    if "settings" in fields:
        request.settings = None
    if verb == "nack":
        request.nacks = [of.Nack("mine")]
    Door(mine=1, orders=2).refusal(holder(ALL, prefix="mine", cluster=0), verb, request)


@pytest.mark.parametrize("verb", OF_ONE_PLACE)
def test_a_refusal_is_the_same_whether_the_namespace_exists_or_not(verb: str) -> None:
    there, gone, who = Door(orders=1), Door(), holder(ALL, prefix="mail", cluster=0)
    texts = {door.refusal(who, verb, request_of(verb)).message for door in (there, gone, there)}
    assert len(texts) == 1


def test_a_refusal_says_who_may_not_do_what_and_where() -> None:
    door, nobody = Door(), Principal("mailer")
    assert door.refusal(nobody, "dequeue", request_of("dequeue")).message == (
        "mailer may not call dequeue in namespace 'orders': it lacks CONSUME"
    )
    assert door.refusal(nobody, "listHosts", of.ListHostsRequest()).message == (
        "mailer may not call listHosts in this cluster: it lacks WATCH"
    )
    assert door.refusal(nobody, "getShardMap", of.ShardMapRequest()).message == (
        "mailer may not call getShardMap in any namespace: it lacks OBSERVE"
    )
    assert door.refusal(nobody, "listNamespaces", of.ListNamespacesRequest("team.")).message == (
        "mailer may not call listNamespaces in any namespace: it lacks OBSERVE"
    )
    assert len(door.refusal(nobody, "ack", request_of("ack", "x" * 1_000_000)).message) < 200


def test_what_is_no_text_is_the_name_of_no_namespace() -> None:
    Door().refusal(holder(OF_NAMESPACE, prefix="", cluster=0), "ack", of.AckRequest(cast(Any, b"orders"), []))


def test_the_map_of_shards_without_a_namespace_is_for_whoever_observes_any() -> None:
    door = Door(orders=1)
    assert door.call(holder(Permission.OBSERVE), "getShardMap", of.ShardMapRequest()) is DONE
    door.refusal(holder(Permission.CONSUME), "getShardMap", of.ShardMapRequest())
    door.refusal(holder(Permission.OBSERVE), "getShardMap", of.ShardMapRequest("others"))


def test_namespaces_are_listed_for_whoever_observes_any_whatever_the_prefix_is() -> None:
    """What is shown is the method's task, for it reads on until a page is full of what the caller may observe."""
    door = Door()
    for prefix in ("", "team", "others"):
        assert door.call(holder(Permission.OBSERVE), "listNamespaces", of.ListNamespacesRequest(prefix)) is DONE
        door.refusal(holder(Permission.CONSUME), "listNamespaces", of.ListNamespacesRequest(prefix))


# ---- grants ----


@pytest.mark.parametrize(
    ("prefix", "name", "holds"),
    [
        ("", "orders", True),
        ("orders", "orders", True),
        ("orders", "orders.eu", True),
        ("orders.", "orders", False),
        ("orders.", "orders.eu", True),
        ("orders.", "ordersXeu", False),
        ("Orders", "orders", False),
        ("orders", "ORDERS", False),
        ("ord*", "orders", False),
        ("caf\u00e9", "cafe\u0301", False),
        ("caf\u00e9", "caf\u00e9s", True),
        ("stra\u00dfe", "strasse", False),
        (" orders", "orders", False),
    ],
)
def test_a_prefix_is_one_of_bytes(prefix: str, name: str, holds: bool) -> None:
    assert bool(Principal("a", 0, prefixes={prefix: 1}).match(name)) is holds
    assert name.encode().startswith(prefix.encode()) is holds


def test_a_name_is_exact_and_a_caller_holds_what_any_of_its_grants_gives() -> None:
    who = Principal("a", 0, {"orders": 1}, {"ord": 2, "order": 4, "x": 8})
    assert [who.match(name) for name in ("orders", "orders.eu", "ordinal", "y")] == [7, 6, 2, 0]
    assert who.anywhere == 15


def test_bits_of_the_cluster_and_of_namespaces_do_not_stand_for_each_other() -> None:
    door = Door(orders=1)
    for verb in NEEDING:
        who = holder(ALL, cluster=0) if VERBS[verb].needs & OF_CLUSTER else Principal("a", int(ALL))
        door.refusal(who, verb, request_of(verb))


def test_a_namespace_that_was_recovered_under_another_name_has_the_bits_of_that_name() -> None:
    door, who = Door(orders=1), Principal("a", 0, {"orders": int(Permission.CONSUME)})
    assert door.call(who, "ack", request_of("ack")) is DONE
    door.numbers = {"letters": 1}
    door.refusal(who, "ack", request_of("ack", "letters"))


def test_names_that_are_made_up_are_not_kept() -> None:
    who = Principal("a", 0, {"orders": 3})
    assert [who.held_in(name, None) for name in ("orders", "a", "b")] == [3, 0, 0]
    assert who.masks == {}
    assert [who.held_in(name, number) for number, name in enumerate(["orders", "a", "b"])] == [3, 0, 0]
    assert who.masks == {0: ("orders", 3)}


def test_a_refusal_takes_the_same_work_whether_the_namespace_exists_or_not() -> None:
    """A hundred grants take 5 µs to match, so that a caller could tell by the time that a match was kept."""
    counts: list[int] = []
    for numbers in ({"orders": 1}, {}):
        door, who = Door(**numbers), Principal("mailer", 0, prefixes={f"mail{number}": 1 for number in range(100)})
        with patch.object(Principal, "match", autospec=True, side_effect=Principal.match) as matched:
            for _ in range(10):
                door.refusal(who, "ack", request_of("ack"))
        counts.append(matched.call_count)
    assert counts == [10, 10]


def test_there_is_a_most_of_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs.model.limits.NAMESPACES_MAX", 3)
    who = Principal("a", 0, prefixes={"": 1})
    assert all(who.held_in(str(number), number) == 1 and len(who.masks) <= 3 for number in range(20))


# ---- settings, roles ----


@pytest.mark.parametrize("verb", ["createNamespace", "updateNamespace"])
def test_settings_that_cost_the_hosts_need_operate_too_and_others_do_not(verb: str) -> None:
    # Bits of the cluster among the grants in namespaces are worth nothing, and the other way round.
    door, owner = Door(orders=1), holder(ALL, cluster=OF_NAMESPACE)
    both = holder(ROLES["owner"], cluster=Permission.OPERATE)
    for name in FIELDS["NamespaceSettings"]:
        for value in (0, 5, ""):
            request = VERBS[verb].request("orders", of.NamespaceSettings(**{name: value}))
            assert door.call(both, verb, request) is DONE
            if name in COSTLY_SETTINGS:
                error = door.refusal(owner, verb, request)
                assert error.message == f"mailer may not call {verb} in namespace 'orders': it lacks OPERATE"
                door.refusal(holder(ALL, prefix="x"), verb, request)
            else:
                assert door.call(owner, verb, request) is DONE


def test_the_bits_are_each_of_a_namespace_or_of_the_cluster() -> None:
    assert len(Permission) == 9
    assert sum(Permission) == OF_NAMESPACE | OF_CLUSTER
    assert not OF_NAMESPACE & OF_CLUSTER


def test_an_operator_and_an_administrator_see_no_payload() -> None:
    for role in ("operator", "admin", "monitor", "viewer", "producer"):
        assert not ROLES[role] & (Permission.READ | Permission.CONSUME), role
    assert ROLES["owner"] == OF_NAMESPACE
    assert ROLES["worker"] == ROLES["producer"] | ROLES["consumer"]


# ---- against an oracle that knows no bits ----

NAMES = ["", "a", "a.", "a.b", "a.bc", "ab", "b", "\u00e9", "e\u0301"]
_grants = st.tuples(st.booleans(), st.sampled_from(NAMES), st.sets(st.sampled_from(list(Permission)), max_size=4))
_calls = st.tuples(st.sampled_from(NEEDING), st.sampled_from(NAMES), st.booleans(), st.none() | st.integers(0, 2))


def allows(
    cluster: set[Permission], grants: list[tuple[bool, str, set[Permission]]], verb: str, name: str, costs: bool
) -> bool:
    """Whether the call may be done, by the words of the decision alone."""
    wanted = set(VERBS[verb].needs) | ({Permission.OPERATE} if costs else set())
    for bit in wanted:
        if bit in (Permission.WATCH, Permission.OPERATE, Permission.ACCESS):
            found = bit in cluster
        elif verb == "listNamespaces":
            found = any(bit in bits for _, _, bits in grants)
        else:
            found = any(
                bit in bits and (name.encode().startswith(text.encode()) if is_prefix else name == text)
                for is_prefix, text, bits in grants
            )
        if not found:
            return False
    return True


@example(set(), [(True, "a.", {Permission.CONSUME})], [("dequeue", "a", False, 1), ("dequeue", "a.b", False, 1)])
@given(
    st.sets(st.sampled_from(list(Permission))),
    st.lists(_grants, max_size=5, unique_by=lambda one: one[:2]),
    st.lists(_calls, max_size=8),
)
def test_the_check_decides_as_the_grants_say(
    cluster: set[Permission],
    grants: list[tuple[bool, str, set[Permission]]],
    calls: list[tuple[str, str, bool, int | None]],
) -> None:
    """The namespaces come, go, and change their names from call to call, under few numbers."""
    texts = [{text: int(sum(bits)) for is_prefix, text, bits in grants if is_prefix is kind} for kind in (False, True)]
    who = Principal("a", int(sum(cluster)), *texts)
    for verb, name, sets_costly, number in calls:
        request = request_of(verb, name)
        costs = sets_costly and VERBS[verb].needs_also is needed_by_settings
        if costs:
            request.settings = of.NamespaceSettings(tier="fast")
        try:
            check_permission(CallContext("", principal=who), verb, request, {name: number}.get)
            is_done = True
        except PermissionDeniedError:
            is_done = False
        assert is_done is allows(cluster, grants, verb, name, costs), (verb, name)
