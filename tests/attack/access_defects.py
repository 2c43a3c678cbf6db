"""Defects of identities and permissions: each lets a caller do, be or learn what it must not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from operator import eq
from typing import Any
from unittest.mock import patch

from foqs.cluster.routing import permission_check
from foqs.cluster.routing.peer_door import PeerDoor
from foqs.cluster.routing.router import Router
from foqs.contract import granting
from foqs.contract.permissions import Permission
from foqs.contract.verbs import VERBS
from foqs.host.access import snapshot as snapshots
from foqs.host.access.snapshot import AccessSnapshot
from foqs.host.verbs import namespace_verbs
from foqs.host.verbs.place_check import PlaceCheck
from foqs.model import access_tokens, limits, peer_proof
from foqs.model.access import AccessGrant, AccessMode, Credential, CredentialKind
from foqs.model.calls import CallContext
from foqs.model.errors import InvalidArgumentError, PermissionDeniedError, UnknownNamespaceError
from foqs.model.principal import Principal
from foqs.testing import fake_access
from foqs.transport import verb_table
from foqs.transport.sign_in import SignIn
from foqs.transport.sign_ins import SignIns
from foqs.wire.codec import structs
from tests.attack.seeding import a_test, changed, found_by, in_memory, in_place_of, the_access_machine

_call = Router.call
_principal = AccessSnapshot.principal
_follow = SignIn._follow
_authenticate = SignIn._authenticate
_PERMISSIONS = "attack.test_permissions_of_callers"
_CHECKS = "unit.test_permissions"
_IDENTITIES = "attack.test_identities"
_PROOF = "attack.test_proof"

# ---- the bits of verbs ----


@found_by(
    a_test(
        f"{_PERMISSIONS}:test_a_verb_is_refused_without_any_single_one_of_its_bits_and_let_in_with_them", "deleteItems"
    )
)
def asks_no_bit_for_a_verb() -> AbstractContextManager[Any]:
    return changed(permission_check._DEMANDS, deleteItems={"bits": 0})


@found_by(
    a_test("unit.test_named_fields:test_whoever_needs_bits_of_a_namespace_names_one_in_a_field_that_the_router_checks")
)
def has_a_row_without_its_bit() -> AbstractContextManager[Any]:
    return changed(VERBS, deleteItems={"needs": Permission(0)})


@found_by(a_test(f"{_CHECKS}:test_each_verb_needs_the_bits_that_the_decision_gives_it"))
def has_a_row_with_a_lesser_bit() -> AbstractContextManager[Any]:
    return changed(VERBS, peekItems={"needs": Permission.OBSERVE})


@found_by(a_test(f"{_CHECKS}:test_settings_that_cost_the_hosts_need_operate_too_and_others_do_not", "updateNamespace"))
def lets_an_owner_raise_its_quota() -> AbstractContextManager[Any]:
    return changed(permission_check._DEMANDS, updateNamespace={"also": lambda request: 0})


@in_place_of(
    Router,
    "call",
    a_test(f"{_CHECKS}:test_a_verb_is_done_with_exactly_its_bits_and_refused_without_any_one_of_them", "ack"),
)
def checks_after_the_act(self: Router, context: CallContext, verb: str, request: Any) -> Awaitable[Any]:
    async def do() -> Any:
        result = await self._call(context, verb, request)
        self.check(context, verb, request)
        return result

    return do()


@in_place_of(
    permission_check,
    "_held",
    a_test(f"{_CHECKS}:test_bits_of_the_cluster_and_of_namespaces_do_not_stand_for_each_other"),
)
def takes_bits_of_the_cluster_for_those_of_namespaces(who: Principal, demand: Any, request: Any, number_of: Any) -> int:
    name = getattr(request, demand.namespace_field)
    return who.cluster | (who.anywhere if name is None else who.held_in(name, number_of(name)))


@found_by(
    a_test(
        "unit.test_access_snapshot:test_a_grant_that_means_nothing_is_refused",
        AccessGrant("n*", ("operator",)),
        "grant it for '\\*'",
    )
)
def grants_roles_of_the_cluster_for_a_prefix() -> AbstractContextManager[Any]:
    return patch.object(granting, "CLUSTER_ROLES", ())


@found_by(a_test(f"{_CHECKS}:test_an_operator_and_an_administrator_see_no_payload"))
def lets_operators_read_payloads() -> AbstractContextManager[Any]:
    return patch.dict(granting.ROLES, {"operator": granting.ROLES["operator"] | Permission.READ})


@in_place_of(
    permission_check,
    "_held",
    a_test(f"{_PERMISSIONS}:test_the_namespace_that_the_front_of_a_frame_names_is_not_believed"),
)
def believes_the_first_namespace_of_a_frame(who: Principal, demand: Any, request: Any, number_of: Any) -> int:
    """As if the scheduler's peek at a frame were the request, of which the last field counts."""
    return who.anywhere


@in_place_of(
    verb_table,
    "_of_shards",
    a_test(
        f"{_PROOF}:test_fields_of_hosts_are_refused_from_others",
        ("planExport", structs.PlanExportRequest("ns", shard_ids=[1])),
    ),
)
def takes_fields_of_hosts_from_a_client(context: CallContext, request: Any) -> CallContext:
    return context


# ---- grants ----


@in_place_of(Principal, "match", a_test(f"{_CHECKS}:test_a_prefix_is_one_of_bytes", "orders.", "orders", holds=False))
def lets_a_prefix_match_a_shorter_name(self: Principal, namespace_name: str) -> int:
    held = self._names.get(namespace_name, 0)
    for prefix, bits in self._prefixes:
        if namespace_name.startswith(prefix) or prefix.startswith(namespace_name):
            held |= bits
    return held


@in_place_of(
    Principal, "match", a_test(f"{_CHECKS}:test_a_name_is_exact_and_a_caller_holds_what_any_of_its_grants_gives")
)
def takes_an_exact_name_for_a_prefix(self: Principal, namespace_name: str) -> int:
    held = 0
    for prefix, bits in (*self._names.items(), *self._prefixes):
        if namespace_name.startswith(prefix):
            held |= bits
    return held


@in_place_of(Principal, "match", the_access_machine)
def compares_names_without_case(self: Principal, namespace_name: str) -> int:
    name = namespace_name.lower()
    held = self._names.get(name, 0)
    for prefix, bits in self._prefixes:
        if name.startswith(prefix.lower()):
            held |= bits
    return held


@found_by(the_access_machine)
def keeps_decisions_without_the_caller() -> AbstractContextManager[Any]:
    kept: dict[tuple[str, int | None], int] = {}

    def held_in(self: Principal, namespace_name: str, number: int | None) -> int:
        return kept.setdefault((namespace_name, number), self.match(namespace_name))

    return patch.object(Principal, "held_in", held_in)


@in_place_of(
    Principal,
    "held_in",
    a_test(f"{_CHECKS}:test_a_namespace_that_was_recovered_under_another_name_has_the_bits_of_that_name"),
)
def keeps_decisions_by_the_number_alone(self: Principal, namespace_name: str, number: int | None) -> int:
    if number is None:
        return self.match(namespace_name)
    return self.masks.setdefault(number, (namespace_name, self.match(namespace_name)))[1]


@in_place_of(
    Principal,
    "held_in",
    a_test(f"{_CHECKS}:test_a_refusal_takes_the_same_work_whether_the_namespace_exists_or_not"),
)
def refuses_sooner_where_there_is_a_namespace(self: Principal, namespace_name: str, number: int | None) -> int:
    if number is None:
        return self.match(namespace_name)
    kept = self.masks.get(number)
    if kept is None or kept[0] != namespace_name:
        kept = self.masks[number] = (namespace_name, self.match(namespace_name))
    return kept[1]


# ---- what a refusal tells, and lists ----


@in_place_of(
    permission_check,
    "_held",
    a_test(f"{_CHECKS}:test_a_refusal_is_the_same_whether_the_namespace_exists_or_not", "ack"),
)
def says_that_a_foreign_namespace_does_not_exist(who: Principal, demand: Any, request: Any, number_of: Any) -> int:
    name = getattr(request, demand.namespace_field)
    if number_of(name) is None:
        raise PermissionDeniedError(f"there is no namespace {name}")
    return who.held_in(name, number_of(name))


@in_place_of(
    Router, "call", a_test(f"{_CHECKS}:test_a_refusal_is_the_same_whether_the_namespace_exists_or_not", "getNamespace")
)
def looks_for_the_namespace_before_the_check(self: Router, context: CallContext, verb: str, request: Any) -> Any:
    name = getattr(request, "name", None)
    if name is not None and self._routes.number_of(name) is None:
        raise AssertionError(str(UnknownNamespaceError(f"namespace {name} is unknown")))
    return _call(self, context, verb, request)


@in_place_of(
    namespace_verbs,
    "observed",
    a_test(f"{_PERMISSIONS}:test_a_list_shows_what_the_caller_may_observe_and_its_pages_are_full"),
)
def lists_all_namespaces(page: Any, prefix: str, after: str, count: int, who: Principal) -> Any:
    return page(prefix, after, count)


@in_place_of(
    namespace_verbs,
    "observed",
    a_test(f"{_PERMISSIONS}:test_a_list_shows_what_the_caller_may_observe_and_its_pages_are_full"),
)
def shows_by_the_length_of_pages_how_many_there_are(
    page: Any, prefix: str, after: str, count: int, who: Principal
) -> Any:
    return [one for one in page(prefix, after, count) if who.match(one.name)]


@in_place_of(
    PlaceCheck, "_check_one", a_test("attack.test_scans:test_a_shard_that_is_added_tells_nothing_of_what_listens_where")
)
async def tells_why_a_database_did_not_open(
    self: PlaceCheck, shard_id: int, place: str, check: Callable[[], None]
) -> None:
    try:
        self._open_database(check)
    except Exception as error:
        raise InvalidArgumentError(f"shard {shard_id} was not added: {error}") from None


@in_place_of(
    SignIn,
    "holds_in",
    a_test(f"{_PERMISSIONS}:test_calls_that_name_the_namespaces_of_others_take_no_turns_of_theirs"),
)
def gives_callers_turns_of_others(self: SignIn, namespace: bytes, number: int) -> bool:
    return True


# ---- credentials ----


@found_by(the_access_machine)
def keeps_a_principal_over_its_revocation() -> AbstractContextManager[Any]:
    kept: dict[str, Any] = {}

    def principal(self: AccessSnapshot, credential: Credential, now_ms: int) -> Principal | None:
        if credential.id not in kept:
            kept[credential.id] = _principal(self, credential, now_ms)
        return kept[credential.id]  # type: ignore[no-any-return]

    return patch.object(AccessSnapshot, "principal", principal)


@in_place_of(
    snapshots,
    "compare_digest",
    a_test("attack.test_constant_time:test_the_hash_of_a_token_is_compared_in_constant_time"),
)
def compares_tokens_in_plain_time(shown: bytes, known: bytes) -> bool:
    return eq(shown, known)


@in_place_of(
    AccessSnapshot,
    "by_token",
    a_test("unit.test_access_snapshot:test_whoever_knows_an_id_without_its_secret_learns_nothing"),
)
def takes_the_id_of_a_token_for_the_token(self: AccessSnapshot, token: str, now_ms: int) -> Credential:
    row = self._tokens.get(access_tokens.parse(token).id)
    if row is None:
        raise PermissionDeniedError("no such token")
    return Credential(row.principal, CredentialKind.TOKEN, row.id, row.expires_at_ms)


@in_place_of(
    snapshots, "expired", a_test("unit.test_access_snapshot:test_a_token_ends_at_its_time_and_says_since_when")
)
def lets_a_token_live_a_moment_longer(expires_at_ms: int, now_ms: int) -> bool:
    return 0 < expires_at_ms < now_ms


@found_by(the_access_machine)
def goes_on_in_a_long_poll_after_the_expiry() -> AbstractContextManager[Any]:
    """A connection looks at its credential when the snapshot is another one, and not when time goes on."""

    def follow(self: SignIn) -> bool:
        self._answered_count = 0
        snapshot = self._shared.snapshot
        if self.is_peer or self.is_dead or not self.is_settled or snapshot is self._snapshot:
            return False
        before = self.context
        self._follow(snapshot)
        return self.context is not before

    return patch.object(SignIn, "follow", follow)


@found_by(the_access_machine)
def lets_a_disabled_principal_go_on() -> AbstractContextManager[Any]:
    def principal(self: AccessSnapshot, credential: Credential, now_ms: int) -> Principal | None:
        row = self._principals.get(credential.principal)
        known = self._tokens.get(credential.id) or self._certificates.get(credential.id)
        if row is None or known is None or snapshots.expired(credential.expires_at_ms, now_ms):
            return None
        return self._made.get(row.name) or self._make(row)

    return patch.object(AccessSnapshot, "principal", principal)


@found_by(a_test(f"{_IDENTITIES}:test_a_token_of_another_principal_does_not_take_over_a_connection"))
def lets_another_token_take_over_a_connection() -> AbstractContextManager[Any]:
    def authenticate(self: SignIn, token: str) -> Any:
        self.credential = None
        return _authenticate(self, token)

    return patch.object(SignIn, "_authenticate", authenticate)


@in_place_of(
    SignIn,
    "_authenticate",
    a_test(
        f"{_IDENTITIES}:test_a_token_over_a_plain_connection_from_elsewhere_is_refused_whatever_the_mode",
        AccessMode.ENFORCED,
    ),
)
def takes_a_token_over_a_plain_connection(self: SignIn, token: str) -> Any:
    with patch.object(self._shared, "tokens_without_tls", True):
        return _authenticate(self, token)


@in_place_of(
    AccessSnapshot,
    "by_names",
    a_test(f"{_IDENTITIES}:test_a_certificate_of_the_right_authority_without_a_row_proves_nothing"),
)
def takes_the_name_of_a_certificate_for_that_of_a_principal(
    self: AccessSnapshot, names: Sequence[str], now_ms: int
) -> Credential | None:
    for name in names:
        if name in self._principals:
            certificate = next(iter(self._certificates), "")
            return Credential(name, CredentialKind.CERTIFICATE, certificate, 0)
    return None


@in_place_of(
    AccessSnapshot,
    "by_names",
    a_test("unit.test_access_snapshot:test_a_certificate_with_names_of_two_principals_proves_nothing"),
)
def takes_the_first_of_two_principals_of_a_certificate(
    self: AccessSnapshot, names: Sequence[str], now_ms: int
) -> Credential | None:
    for name in names:
        row = self._certificates.get(name)
        if row is not None:
            return Credential(row.principal, CredentialKind.CERTIFICATE, row.name, 0)
    return None


@in_place_of(SignIn, "who", a_test(f"{_IDENTITIES}:test_whoever_has_a_revoked_credential_is_told_no_grants"))
def tells_the_grants_of_a_dead_credential(self: SignIn) -> Any:
    name = self.context.principal.name
    return verb_table.calls.Identity(name, 0, list(self._shared.snapshot.grants_of(name)))


# ---- modes ----


@in_place_of(Router, "check", a_test(f"{_CHECKS}:test_in_the_permissive_mode_what_would_be_refused_is_noted_and_done"))
def does_not_note_what_would_be_refused(self: Router, context: CallContext, verb: str, request: Any) -> None:
    if not context.is_permissive:
        permission_check.check_permission(context, verb, request, self._routes.number_of)


@found_by(in_memory("test_enforced_access_always_has_an_administrator_that_can_show_it"))
def enforces_access_without_an_administrator() -> AbstractContextManager[Any]:
    return patch.object(fake_access, "administrators", lambda rows, now_ms: frozenset({"somebody"}))


@found_by(in_memory("test_a_deleted_namespace_leaves_no_grant_to_one_of_the_same_name"))
def leaves_grants_to_a_namesake() -> AbstractContextManager[Any]:
    return patch.object(fake_access.FakeAccess, "forget_all_of", lambda self, name: None)


@found_by(the_access_machine)
def takes_the_mode_of_another_snapshot() -> AbstractContextManager[Any]:
    """The mode of the first snapshot that a connection saw stays its mode."""

    def follow(self: SignIn, snapshot: Any) -> None:
        first = self._snapshot
        if first is not None and first.mode is not snapshot.mode:
            snapshot.mode = first.mode
        _follow(self, snapshot)

    return patch.object(SignIn, "_follow", follow)


# ---- before the login ----


@in_place_of(
    SignIns,
    "may_answer",
    a_test(
        "attack.test_sign_in_floods:test_a_flood_of_wrong_tokens_gets_few_answers_and_few_lines_and_the_right_token_is_taken"
    ),
)
def answers_a_flood_of_wrong_tokens(self: SignIns, address: str) -> bool:
    return True


@in_place_of(
    SignIn,
    "_count_call",
    a_test(
        "attack.test_sign_in_floods:test_an_address_without_a_login_gets_few_answers_over_many_connections", "whoAmI"
    ),
)
def answers_whoever_asks_who_it_is(self: SignIn) -> None: ...


@found_by(
    a_test(
        "attack.test_before_login:test_before_the_login_every_call_is_refused_by_its_name_with_one_text_whatever_it_names"
    )
)
def reads_calls_before_the_login() -> AbstractContextManager[Any]:
    def follow(self: SignIn, snapshot: Any) -> None:
        _follow(self, snapshot)
        self.is_barred = False

    return patch.object(SignIn, "_follow", follow)


@found_by(
    a_test(
        "attack.test_sign_in_floods:"
        "test_a_large_frame_of_an_address_that_gets_no_more_answers_closes_its_connection_and_nothing_else"
    )
)
def keeps_large_frames_before_the_login() -> AbstractContextManager[Any]:
    return patch("foqs.transport.sign_in.LOGIN_FRAME_BYTES_MAX", limits.FRAME_BYTES_MAX)


# ---- hosts ----


@in_place_of(
    peer_proof.hmac, "compare_digest", a_test(f"{_PROOF}:test_a_host_cannot_be_made_to_prove_itself_to_itself")
)
def takes_any_proof_of_a_host(shown: bytes, known: bytes) -> bool:
    return True


@in_place_of(PeerDoor, "_peer", a_test(f"{_PROOF}:test_a_client_calls_none_of_the_verbs_of_hosts", "report"))
def does_the_verbs_of_hosts_for_a_client(self: PeerDoor, context: CallContext) -> str:
    return context.peer or "b"


@found_by(a_test(f"{_PROOF}:test_a_peer_calls_the_verbs_of_hosts_alone"))
def does_the_verbs_of_clients_for_a_host() -> AbstractContextManager[Any]:
    return changed(verb_table._ROWS, createNamespace={"is_for_peers": True})
