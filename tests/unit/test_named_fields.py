"""Each field of each request is content, or a name that somebody checks: foqs/contract/names.py has them all."""

from __future__ import annotations

from collections.abc import Iterator

from foqs.contract.names import FIELDS, Checked, field_of
from foqs.contract.permissions import COSTLY_SETTINGS, NOTHING, OF_NAMESPACE, Permission, needed_by_settings
from foqs.contract.verbs import VERBS
from foqs.model.namespace import NamespaceSettings
from scripts.generate_requests import SOURCE
from scripts.idl_tables import Block, blocks, services


def _blocks_of(names: set[str], by_name: dict[str, Block]) -> Iterator[str]:
    """The structs of these names, and those that their fields hold."""
    for name in names:
        yield name
        held = {word for one in by_name[name].fields for word in one.type.replace("<", " ").replace(">", " ").split()}
        yield from _blocks_of({word for word in held if word in by_name and by_name[word].kind == "struct"}, by_name)


BY_NAME = {block.name: block for block in blocks(SOURCE)}
REQUESTS = {request for _, calls in services(SOURCE) for _, request, _ in calls}
STRUCTS = sorted(set(_blocks_of(REQUESTS, BY_NAME)))


def test_every_struct_that_a_request_holds_is_listed_and_no_other() -> None:
    assert sorted(FIELDS) == STRUCTS
    assert len(STRUCTS) > 50


def test_every_field_is_listed_once_as_content_or_with_the_one_who_checks_it() -> None:
    for struct in STRUCTS:
        assert sorted(FIELDS[struct]) == sorted(one.name for one in BY_NAME[struct].fields), (
            f"{struct}: say in foqs/contract/names.py what a field names and who checks that, or that it is content"
        )
        for check in (Checked.NAMESPACE, Checked.NAMESPACES):
            names = [name for name, found in FIELDS[struct].items() if found is check]
            assert len(names) <= (1 if check is Checked.NAMESPACE else 2), f"{struct}: a call is of one namespace"


def test_a_field_with_structs_is_content_and_their_own_fields_are_listed() -> None:
    """A split names places in a shard by its fields; nothing is checked twice, and nothing in between is left out."""
    for struct in STRUCTS:
        for one in BY_NAME[struct].fields:
            if any(name in one.type for name in STRUCTS) and FIELDS[struct][one.name] is not Checked.PEER:
                assert FIELDS[struct][one.name] is Checked.CONTENT, (struct, one.name)


def test_whoever_needs_bits_of_a_namespace_names_one_in_a_field_that_the_router_checks() -> None:
    for verb, row in VERBS.items():
        struct = row.request.__name__
        is_named = bool(field_of(struct, Checked.NAMESPACE) or field_of(struct, Checked.NAMESPACES))
        assert is_named == bool(row.needs & OF_NAMESPACE), verb


def test_who_needs_nothing_names_nothing_but_what_the_connection_or_the_peer_door_checks() -> None:
    for verb, row in VERBS.items():
        if row.needs == NOTHING:
            checks = set(FIELDS[row.request.__name__].values())
            assert checks <= {Checked.CONNECTION, Checked.PEER}, verb


def test_what_names_things_of_the_cluster_needs_operate_and_what_names_principals_needs_access() -> None:
    of_access = {call for service, found in services(SOURCE) for call, _, _ in found if service == "FoqsAccess"}
    assert len(of_access) == 13
    for verb, row in VERBS.items():
        if verb in of_access:
            assert row.needs == Permission.ACCESS, verb
        elif Checked.CLUSTER in FIELDS[row.request.__name__].values():
            assert row.needs == Permission.OPERATE, verb


def test_a_name_for_the_items_of_a_lost_namespace_needs_access_whatever_it_is() -> None:
    also = VERBS["recoverNamespace"].needs_also
    assert also is not None
    assert also(VERBS["recoverNamespace"].request(1)) == NOTHING
    assert [also(VERBS["recoverNamespace"].request(1, name)) for name in ("orders", "")] == [Permission.ACCESS] * 2


def test_whatever_has_settings_of_a_namespace_needs_operate_for_those_that_cost_the_hosts() -> None:
    with_settings = {verb for verb, row in VERBS.items() if "settings" in FIELDS[row.request.__name__]}
    assert with_settings == {"createNamespace", "updateNamespace", "recoverNamespace"}
    of_settings = {verb for verb, row in VERBS.items() if row.needs_also is needed_by_settings}
    assert of_settings == with_settings - {"recoverNamespace"}
    assert set(COSTLY_SETTINGS) == {
        "enqueues_per_minute_max", "payload_bytes_max", "metadata_bytes_max", "batch_items_max", "dedup_ms",
        "dedup_ids", "key_spread", "delay_ms_max", "ttl_ms_max", "events_per_mille", "tier",
    }  # fmt: skip
    assert FIELDS["NamespaceSettings"].keys() == NamespaceSettings.__dataclass_fields__.keys()
