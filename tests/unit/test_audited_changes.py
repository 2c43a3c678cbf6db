"""A record of the audit has every grant and every policy of its call, in several records if one is too short."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest

from foqs.contract import requests as of
from foqs.contract.audited import PARTS_MAX
from foqs.contract.permissions import ROLES
from foqs.host.audit import trail
from foqs.model import access_tokens, limits
from foqs.model.access import GRANTS_MAX
from foqs.model.audit import CHANGES_BYTES_MAX, AuditNote
from foqs.model.calls import CallContext
from foqs.model.errors import InvalidArgumentError, PermissionDeniedError, UnavailableError
from foqs.model.principal import Principal
from foqs.wire.codec import structs
from tests.support.audit_world import World
from tests.support.waiting import until


@pytest.fixture
async def world() -> AsyncIterator[World]:
    found = World()
    await found.audit.start()
    yield found
    found.table.away = None
    await found.audit.stop()


@pytest.mark.parametrize("is_refused", [False, True])
async def test_no_text_of_a_record_has_a_secret_that_was_pasted_there(world: World, is_refused: bool) -> None:
    token = access_tokens.new_token(bytes(range(access_tokens.RANDOM_BYTES)))
    secret, context = token[20:], CallContext(token, principal=Principal(token), credential=token)
    for name in (token, f"mysql://foqs:{secret}@db-1/shard7"):
        request = of.GetItemRequest(name, name)
        if is_refused:
            world.audit.refused(context, "getItem", request, PermissionDeniedError("no"))
        else:
            await world.call("getItem", request, context)
    world.audit.noted(AuditNote("signIn", token, token, token, token, token, token))
    world.audit.sign_in_refused(AuditNote("signIn", token, token, token, token, token, token))
    await world.audit.drain()
    records = list(world.table.rows.values())
    assert len(records) == 4
    assert secret not in str(records)
    assert secret not in str(world.refusals)
    assert records[0].namespace_name == f"{token[:17]}_***"


async def test_every_grant_with_every_role_is_recorded_also_behind_harmless_ones(world: World) -> None:
    grants = [
        structs.AccessGrant("billing-test", ["viewer", "viewer"]),
        structs.AccessGrant("*", ["admin", "operator", "owner"]),
    ]
    await world.call("updatePrincipal", structs.UpdatePrincipalRequest("mallory", added=grants, removed=["a", "b*"]))
    (record,) = await world.written(1)
    assert record.subject == "name='mallory'"
    assert record.changes == (
        "removed[2]='a' 'b*' added[2]=(namespaces='billing-test' roles[2]='viewer')"
        " (namespaces='*' roles[3]='admin' 'operator' 'owner')"
    )


async def test_every_policy_of_a_batch_is_recorded_with_its_topic_and_settings(world: World) -> None:
    topic = "p" * limits.TOPIC_BYTES_MAX
    changes = [structs.TopicPolicyChange("harmless", weight=2), structs.TopicPolicyChange(topic, dequeue_paused=True)]
    await world.call("setTopicPolicies", of.SetTopicPoliciesRequest("orders", changes))
    (record,) = await world.written(1)
    assert record.changes.startswith("changes[2]=(topic='harmless' ")
    assert f"(topic='{topic}' " in record.changes
    assert "dequeue_paused=True" in record.changes
    assert "weight=2" in record.changes


async def test_a_change_that_is_longer_than_a_record_is_in_several_with_their_numbers(world: World) -> None:
    changes = [structs.TopicPolicyChange(f"topic-{number:04}", dequeue_paused=True) for number in range(1_000)]
    await world.call("setTopicPolicies", of.SetTopicPoliciesRequest("orders", changes))
    await world.audit.drain()
    records = [world.table.rows[place] for place in sorted(world.table.rows)]
    assert 10 < len(records) <= PARTS_MAX
    for number, record in enumerate(records, 1):
        assert record.changes.startswith(f"part {number} of {len(records)}: ")
        assert len(record.changes.encode()) <= CHANGES_BYTES_MAX
    assert {record.request_id for record in records} == {"r-1"}
    assert sum(record.count for record in records) == 1, "they are one call"
    said = " ".join(record.changes for record in records)
    assert all(f"topic-{number:04}" in said for number in range(1_000))


async def test_the_greatest_grants_of_a_principal_lose_nothing(world: World) -> None:
    grants = [structs.AccessGrant(f"{number:063}*", list(ROLES)) for number in range(GRANTS_MAX)]
    await world.call("createPrincipal", of.CreatePrincipalRequest("mallory", grants))
    await world.audit.drain()
    said = " ".join(record.changes for record in world.table.rows.values())
    assert said.count("'admin'") == said.count("'owner'") == GRANTS_MAX
    assert "…" not in said


async def test_what_a_record_leaves_out_is_counted_and_a_call_that_did_nothing_is_one_record(world: World) -> None:
    changes = [structs.TopicPolicyChange("t" * 250 + str(number), reason="r" * 500) for number in range(1_000)]
    await world.call("setTopicPolicies", of.SetTopicPoliciesRequest("orders", changes * 9))
    await until(lambda: not world.audit.waiting_count)
    assert len(world.table.rows) <= PARTS_MAX
    assert re.search(r"… and 8\d\d\d more$", world.table.rows[max(world.table.rows)].changes)
    world.table.rows.clear()
    world.error = InvalidArgumentError("no")
    with pytest.raises(InvalidArgumentError):
        await world.call("setTopicPolicies", of.SetTopicPoliciesRequest("orders", changes))
    await until(lambda: not world.audit.waiting_count)
    (record,) = world.table.rows.values()
    assert record.changes.startswith("changes[1000]=(topic='ttt")
    assert re.search(r"… and 99\d more$", record.changes)


async def test_the_further_records_of_a_long_change_take_no_place_from_other_changes(world: World) -> None:
    world.table.away = UnavailableError("away")
    changes = [structs.TopicPolicyChange(f"{number:0250}", weight=2) for number in range(1_000)]
    for _ in range(20):
        await world.call("setTopicPolicies", of.SetTopicPoliciesRequest("orders", changes))
    assert world.audit.waiting_count <= trail.WAITING_SUMS_MAX + 20
    await world.call("removeShard", of.RemoveShardRequest(7))
    assert world.audit._waiting[-1].verb == "removeShard"
