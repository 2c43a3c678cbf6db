"""The table of the contract: each verb of the IDL has a row, and each row a method that takes its request."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from foqs.contract import requests
from foqs.contract.verbs import VERBS, ByShard, OfShard, Whole
from foqs.host.verbs.table import NOT_OF_A_HOST, method_name, verb_table
from foqs.model.calls import CallContext
from foqs.model.principal import EVERYBODY
from foqs.wire.codec import METHODS
from scripts import generate_requests
from tests.support.fake_queue import FakeQueue


def test_the_types_of_requests_are_current() -> None:
    assert generate_requests.TARGET.read_text() == generate_requests.generated(), (
        "run: python -m scripts.generate_requests"
    )


def test_each_verb_of_the_contract_has_a_row_with_its_request_and_each_row_is_a_verb() -> None:
    assert {name: verb.request for name, verb in VERBS.items()} == {
        name: method.request for name, method in METHODS.items()
    }


def test_the_fields_that_a_row_names_are_there() -> None:
    for name, verb in VERBS.items():
        fields = verb.request().__dict__
        if isinstance(verb.route, ByShard):
            assert verb.route.field in fields, name
            assert (verb.route.also or verb.route.field) in fields, name
        if isinstance(verb.route, OfShard):
            assert (verb.route.item_id or verb.route.shard_id).partition(".")[0] in fields, name
        if verb.costs:
            assert verb.costs in verb.result.__dataclass_fields__, name


def methods(names: set[str]) -> Any:
    """A part of a host with these methods, which return what they were given."""

    async def done(context: CallContext, request: Any) -> Any:
        return request

    return SimpleNamespace(**dict.fromkeys(names, done))


ALL = {method_name(verb) for verb in VERBS.keys() - NOT_OF_A_HOST}


def test_a_verb_without_a_method_and_one_with_two_are_found_when_the_table_is_made() -> None:
    assert verb_table(methods(ALL)).keys() == VERBS.keys() - NOT_OF_A_HOST
    with pytest.raises(TypeError, match="extendLease has 0"):
        verb_table(methods(ALL - {"extend_lease"}))
    with pytest.raises(TypeError, match="extendLease has 2"):
        verb_table(methods(ALL), methods({"extend_lease"}))


def test_a_part_that_needs_no_context_gets_the_request_alone() -> None:
    class Acks:
        async def ack(self, request: object) -> object:
            return request

    table = verb_table(methods(ALL - {"ack"}), without_context=[Acks()])
    assert asyncio.run(_result(table["ack"](CallContext("", principal=EVERYBODY), "it"))) == "it"


async def _result(done: Any) -> Any:
    return await done


def test_the_fake_of_the_tests_has_each_verb() -> None:
    own = {name for name, verb in VERBS.items() if verb.route in (Whole.OF_PEERS, Whole.OF_CONNECTION)}
    assert [verb for verb in VERBS.keys() - own if not hasattr(FakeQueue, method_name(verb))] == []


def test_a_changed_request_has_new_values_and_the_old_one_keeps_its_own() -> None:
    request = requests.AckRequest("jobs", ["1-1", "1-2"], True)
    other = requests.changed(request, receipts=["1-2"])
    assert other == requests.AckRequest("jobs", ["1-2"], True)
    assert request.receipts == ["1-1", "1-2"]
    assert type(other) is type(request)


def test_no_verb_that_changes_namespaces_policies_jobs_or_shards_is_for_other_hosts() -> None:
    changing = {name for name in VERBS if name.startswith(("create", "update", "set", "recover", "add"))}
    assert changing | {"deleteNamespace"} <= {name for name, verb in VERBS.items() if not verb.is_for_peers}
    assert VERBS["removeShard"].is_for_peers, "its owner alone can do it"
