"""What the audit records of calls, when it adds records up, and what it does while the meta database is away."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.contract import requests as of
from foqs.contract.audited import AUDITED, PARTS_MAX, AuditKind, changes_of, namespace_of, subject_of, texts_of
from foqs.contract.names import FIELDS
from foqs.contract.permissions import Permission
from foqs.contract.verbs import VERBS
from foqs.host.audit import trail
from foqs.host.audit.sums import (
    CALLERS_MAX,
    NAMES_PER_CALLER_MAX,
    OTHER_NAMES,
    WINDOWS_MAX,
    AuditSums,
    RecordedNames,
)
from foqs.model import access_tokens
from foqs.model.audit import CHANGES_BYTES_MAX, SUBJECT_BYTES_MAX, AuditFilter, AuditRecord, clipped
from foqs.model.errors import InvalidArgumentError, NotFoundError, PermissionDeniedError, UnavailableError
from foqs.model.namespace import NamespaceSettings
from foqs.wire.codec import structs
from tests.support.audit_world import MAILER, World
from tests.support.waiting import until


def _said(request: Any) -> str:
    return " ".join([subject_of(request), *changes_of(request, lambda _: None)])


@pytest.fixture
async def world() -> AsyncIterator[World]:
    found = World()
    await found.audit.start()
    yield found
    found.table.away = None
    await found.audit.stop()


def test_every_verb_that_changes_something_or_shows_payloads_is_audited() -> None:
    changes = Permission.ALTER | Permission.MANAGE | Permission.OPERATE | Permission.ACCESS
    for name, row in VERBS.items():
        if row.needs & (changes | Permission.READ) and not name.startswith(("get", "list")):
            assert name in AUDITED, name
    assert {name for name in AUDITED if name.startswith(("get", "list"))} == {"getItem", "listDeadLetters"}
    assert AUDITED["deleteItems"] is AUDITED["forgetDedupIds"] is AuditKind.OF_ITEMS
    assert not {"enqueue", "dequeue", "ack", "nack", "extendLease", "getActiveTopics"} & AUDITED.keys()


def test_no_record_of_any_request_tells_a_payload_or_metadata() -> None:
    """Every struct that a request can hold, as a request and in the list of one."""
    secret, told = b"s3cr3t-" * 3, set[str]()
    for name, fields in FIELDS.items():
        struct = getattr(structs, name)()
        for field in fields:
            setattr(struct, field, secret if field in ("payload", "metadata") else None)
        told.update({"payload", "metadata"} & fields.keys())
        for request in (struct, of.SetTopicPoliciesRequest("orders", [struct])):
            assert secret.decode() not in _said(request), name
    assert told == {"payload", "metadata"}


def test_a_request_with_a_token_is_recorded_without_it() -> None:
    secret = "s3cr3t-" * 3
    for name in AUDITED:
        request = VERBS[name].request()
        request.token = secret
        assert secret not in _said(request), name


async def test_a_change_is_recorded_with_who_where_what_and_how_it_ended(world: World) -> None:
    world.settings["orders"] = NamespaceSettings(attempts_max=3)
    wanted = structs.NamespaceSettings(
        attempts_max=7, lease_ms_default=NamespaceSettings().lease_ms_default, tier="fast"
    )
    with capture_logs() as logged:
        await world.call("updateNamespace", of.UpdateNamespaceRequest("orders", wanted))
    (record,) = await world.written(1)
    assert record == AuditRecord(
        1_000_000, "a:1#1", 1, "r-1", "mailer", "tk_1", "10.0.0.7", "updateNamespace", "orders", "",
        "tier='' -> 'fast' attempts_max=3 -> 7", "OK",
    )  # fmt: skip
    (line,) = [entry for entry in logged if entry["event"] == "audit"]
    assert (line["principal"], line["changes"], line["log_level"]) == ("mailer", record.changes, "info")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (InvalidArgumentError("no"), "INVALID_ARGUMENT"),
        (UnavailableError("away", nothing_done=True), "UNAVAILABLE"),
        (UnavailableError("away"), "UNAVAILABLE, outcome unknown"),
        (RuntimeError("a defect"), "INTERNAL"),
        (asyncio.CancelledError(), "CANCELLED, outcome unknown"),
    ],
)
async def test_a_call_that_fails_is_recorded_with_its_error_and_fails_as_without_audit(
    world: World, error: BaseException, outcome: str
) -> None:
    world.error = error
    with pytest.raises(type(error)) as caught:
        await world.call("deleteNamespace", of.DeleteNamespaceRequest("orders"))
    assert caught.value is error or isinstance(error, asyncio.CancelledError)
    (record,) = await world.written(1)
    assert (record.verb, record.namespace_name, record.outcome) == ("deleteNamespace", "orders", outcome)


async def test_the_refused_part_of_a_batch_is_counted(world: World) -> None:
    world.result = {0: InvalidArgumentError("no"), 2: InvalidArgumentError("no")}
    await world.call("deleteItems", of.DeleteItemsRequest("orders", ["1-1", "1-2", "1-3"]))
    (record,) = await world.written(1)
    assert (record.subject, record.outcome) == ("ids[3]='1-1'", "OK, 2 refused")


async def test_a_record_has_the_topic_and_the_first_of_the_dedup_ids_that_are_forgotten(world: World) -> None:
    world.result = {1: NotFoundError("it was free")}
    await world.call("forgetDedupIds", of.ForgetDedupIdsRequest("orders", ["a", "b"], "t"))
    (record,) = await world.written(1)
    assert (record.verb, record.subject) == ("forgetDedupIds", "dedup_ids[2]='a' topic='t'")
    assert record.outcome == "OK, 1 refused"


async def test_reads_of_one_caller_are_one_record_at_once_and_one_sum_a_minute(world: World) -> None:
    world.result = []
    for number in range(5):
        world.now_s += 1
        await world.call("peekItems", of.PeekItemsRequest("orders", f"topic-{number}"))
    await world.call("peekItems", of.PeekItemsRequest("bills", "t"))
    assert [record.count for record in await world.written(2)] == [1, 1]
    world.now_s += trail.READS_WINDOW_MS / 1000
    await world.audit._end_windows()
    records = await world.written(3)
    assert [(record.namespace_name, record.count) for record in records] == [("orders", 1), ("bills", 1), ("orders", 4)]
    assert records[2].subject == "topic='topic-4'", "the sum has the last one"


async def test_a_sum_has_the_time_of_its_record_so_a_reader_that_continues_from_there_misses_nothing(
    world: World,
) -> None:
    world.result = []
    for _ in range(3):
        world.now_s += 1
        await world.call("peekItems", of.PeekItemsRequest("orders", "t"))
    world.now_s += 2
    await world.call("removeShard", of.RemoveShardRequest(7))
    newest_ms = max(record.at_ms for record in await world.written(2))
    world.now_s += trail.READS_WINDOW_MS / 1000
    await world.audit._end_windows()
    (summed,) = [record for record in await world.written(3) if record.count == 2]
    assert summed.at_ms == round(world.now_s * 1000) > newest_ms
    assert summed.changes == "calls from 1970-01-01T00:16:42.000Z to 1970-01-01T00:16:43.000Z"


async def test_refusals_of_one_caller_are_summed_up_and_say_nothing_of_what_exists(world: World) -> None:
    for number in range(100):
        error = PermissionDeniedError("mailer may not")
        world.audit.refused(MAILER, "dequeue", of.DequeueRequest("orders", [structs.TopicDemand("t", 1)]), error)
        assert error.request_id == f"r-{number + 1}"
    assert world.refusals == [("mailer", "dequeue", "orders")] * 100
    await world.audit.drain()
    assert [(record.outcome, record.count) for record in await world.written(2)] == [
        ("PERMISSION_DENIED", 1),
        ("PERMISSION_DENIED", 99),
    ]


async def test_no_call_waits_for_the_meta_database_and_each_record_is_there_once_it_is_back(world: World) -> None:
    world.table.away, world.table.is_done_though_away = UnavailableError("away"), True
    for number in range(5):
        await asyncio.wait_for(world.call("removeShard", of.RemoveShardRequest(number)), timeout=60)
    await until(lambda: world.table.tries_count >= 1)
    world.table.away = None
    world.audit._has_failed = False
    world.audit._asked.set()
    records = await world.written(5)
    assert Counter(record.subject for record in records) == Counter(f"shard_id={number}" for number in range(5))
    await until(lambda: not world.audit.waiting_count)
    assert world.audit.lost_count == 0


async def test_of_more_records_than_can_wait_the_log_has_all_and_the_lost_are_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trail, "WAITING_MAX", 10)
    world.table.away = UnavailableError("away")
    with capture_logs() as logged:
        for number in range(25):
            await world.call("removeShard", of.RemoveShardRequest(number))
    assert len([entry for entry in logged if entry["event"] == "audit"]) == 25
    assert (world.audit.waiting_count, world.audit.lost_count) == (10, 15)


async def test_a_record_that_the_database_can_never_take_does_not_stop_the_others(world: World) -> None:
    world.table.away = ValueError("a defect")
    await world.call("removeShard", of.RemoveShardRequest(1))
    await until(lambda: world.audit.lost_count == 1)
    world.table.away = None
    await world.call("removeShard", of.RemoveShardRequest(2))
    world.audit._has_failed = False
    (record,) = await world.written(1)
    assert record.subject == "shard_id=2"


async def test_the_end_of_a_host_writes_the_sums_of_open_windows(world: World) -> None:
    for _ in range(3):
        await world.call("getItem", of.GetItemRequest("orders", "1-1"))
    await world.audit.drain()
    assert sorted(record.count for record in world.table.rows.values()) == [1, 2]


async def test_a_drain_during_a_write_loses_nothing(world: World) -> None:
    world.table.gate = gate = threading.Event()
    for number in range(3):
        await world.call("removeShard", of.RemoveShardRequest(number))
    await until(lambda: world.table.tries_count == 1)
    draining = asyncio.ensure_future(world.audit.drain())
    await asyncio.sleep(0)
    gate.set()
    await draining
    assert sorted(record.subject for record in world.table.rows.values()) == [f"shard_id={n}" for n in range(3)]
    assert (world.audit.waiting_count, world.audit.lost_count) == (0, 0)


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("mysql://foqs:s3cr3t@db-1:3306/shard7", "mysql://***@db-1:3306/shard7"),
        ("mysql://foqs:s3c/r3t@db-1/shard7", "mysql://***@db-1/shard7"),
        ("mysql://foqs:s3c r3t@x@db-1/shard7", "mysql://***@db-1/shard7"),
        ("foqs:s3cr3t@db-1:3306/shard7", "***@db-1:3306/shard7"),
        ("mysql://foqs:" + "s3cr3t" * 10_000 + "@db-1/shard7", "mysql://***@"),
        ("mysql://db-1:3306/shard7", "mysql://db-1:3306/shard7"),
    ],
)
def test_a_login_in_an_address_is_not_recorded(place: str, told: str) -> None:
    assert subject_of(of.AddShardRequest(7, place, "fast")) == f"shard_id=7 place={told!r} tier='fast'"


def test_a_token_that_was_pasted_where_its_id_is_asked_for_is_not_recorded() -> None:
    token = access_tokens.new_token(bytes(range(access_tokens.RANDOM_BYTES)))
    token_id = access_tokens.parse(token).id
    assert subject_of(of.RevokeTokenRequest(token)) == f"id='foqs_{token_id}_***'"
    assert token[20:] not in _said(of.CreateTokenRequest("mailer", f"of {token}"))


async def test_a_caller_that_makes_up_namespaces_fills_neither_the_log_nor_the_table(world: World) -> None:
    with capture_logs() as logged:
        for number in range(5_000):
            error = PermissionDeniedError("mailer may not")
            world.audit.refused(MAILER, "getItem", of.GetItemRequest(f"made-up-{number}", "1-1"), error)
        for _ in range(2):
            world.now_s += trail.REFUSALS_WINDOW_MS / 1000
            await world.audit._end_windows()
    told = [entry for entry in logged if entry["event"] == "audit"]
    assert len(told) == NAMES_PER_CALLER_MAX + 2, "its names, and the first and the sum of all others"
    assert sum(entry["count"] for entry in told) == 5_000
    assert len(set(world.refusals)) == NAMES_PER_CALLER_MAX + 1
    world.audit.refused(MAILER, "getItem", of.GetItemRequest("later", "1-1"), PermissionDeniedError("no"))
    assert world.refusals[-1] == ("mailer", "getItem", "later"), "a minute later names are told again"


async def test_a_caller_that_makes_up_namespaces_with_every_verb_leaves_no_place_to_spare_either(world: World) -> None:
    """All verbs with the same names were 3,000 records a minute of one caller, which is more than can wait."""
    verbs = [name for name, row in VERBS.items() if "namespace_name" in FIELDS[row.request.__name__]]
    assert len(verbs) >= 20
    with capture_logs() as logged:
        for number in range(NAMES_PER_CALLER_MAX):
            for verb in verbs:
                request = VERBS[verb].request()
                request.namespace_name = f"made-up-{number}"
                world.audit.refused(MAILER, verb, request, PermissionDeniedError("mailer may not"))
        world.now_s += trail.REFUSALS_WINDOW_MS / 1000
        await world.audit._end_windows()
    told = [entry for entry in logged if entry["event"] == "audit"]
    assert len(told) <= NAMES_PER_CALLER_MAX + 2 * len(verbs)
    assert sum(entry["count"] for entry in told) == NAMES_PER_CALLER_MAX * len(verbs)
    assert {entry["verb"] for entry in told} == set(verbs), "each verb is told"


def test_the_callers_whose_names_are_kept_are_bounded() -> None:
    names, told = RecordedNames(), set[str]()
    for number in range(2 * CALLERS_MAX):
        record = AuditRecord(1, "h", 0, "", "nobody", "", f"10.0.0.{number}", "v", "n", "", "", "OK")
        told.add(names.name_of(record))
    assert told == {"n", OTHER_NAMES}
    assert len(names._by_caller) == CALLERS_MAX


async def test_places_are_kept_for_changes_however_many_sums_wait(world: World) -> None:
    world.table.away = UnavailableError("away")
    for number in range(2 * trail.WAITING_MAX):
        caller = replace(MAILER, caller=f"10.0.{number}")
        world.audit.refused(caller, "getItem", of.GetItemRequest("n", "1-1"), PermissionDeniedError("no"))
    assert world.audit.waiting_count == trail.WAITING_SUMS_MAX
    await world.call("removeShard", of.RemoveShardRequest(7))
    assert world.audit._waiting[-1].verb == "removeShard"


def test_a_record_is_bounded_whatever_the_request_has_in_it() -> None:
    change = structs.TopicPolicyChange("t" * 100_000, reason="\N{SNOWMAN}" * 100_000)
    request = of.SetTopicPoliciesRequest("orders", [change] * 1_000)
    for texts_max in (1, PARTS_MAX):
        texts = texts_of(changes_of(request, lambda _: None), texts_max)
        assert "changes[1000]=(topic='ttt" in texts[0]
        assert len(texts) <= texts_max
        assert all(len(text.encode()) <= CHANGES_BYTES_MAX for text in texts)
    assert len(subject_of(of.DeleteItemsRequest("orders", ["\N{SNOWMAN}" * 9_999])).encode()) <= SUBJECT_BYTES_MAX
    assert namespace_of(of.GetItemRequest(7, "1-1")) == "", "what is no text is the name of no namespace"
    assert clipped("\N{SNOWMAN}" * 9, 10).encode() == "\N{SNOWMAN}\N{SNOWMAN}…".encode()


def test_sums_lose_and_double_nothing_whatever_the_clock_does() -> None:
    """The oracle: all that was added is told, in records and sums, and a window tells its first record at once."""
    for seed in range(20):
        chance, sums, now_ms = random.Random(seed), AuditSums(), 1_000_000
        added, told = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
        for _ in range(500):
            now_ms += chance.choice((0, 1, 500, 5_000, 90_000, -700, -200_000))
            key = (chance.choice("abc"),)
            record = AuditRecord(now_ms, "h", 0, "", key[0], "", "", "v", "n", "", "", "OK", took_ms=1)
            added[key] += 1
            for one, calls_count, took_ms in sums.add(key, record, 60_000):
                assert calls_count == took_ms
                told[one.principal,] += calls_count
            assert told[key] >= 1
            for one, calls_count, _ in sums.ended(now_ms) if chance.random() < 0.3 else ():
                told[one.principal,] += calls_count
        for one, calls_count, _ in sums.end_all():
            told[one.principal,] += calls_count
        assert told == added
        assert len(sums) == 0


def test_open_windows_are_bounded_and_the_oldest_ends_early() -> None:
    sums = AuditSums()
    record = AuditRecord(1_000, "h", 0, "", "p", "", "", "v", "n", "", "", "OK")
    told = [list(sums.add((str(number),), record, 60_000)) for number in range(WINDOWS_MAX)]
    assert len(sums) == WINDOWS_MAX
    assert all(len(one) == 1 for one in told)
    assert list(sums.add(("0",), record, 60_000)) == []
    assert [calls_count for _, calls_count, _ in sums.add(("new",), record, 60_000)] == [1, 1], (
        "the oldest, and the new one"
    )
    assert len(sums) == WINDOWS_MAX


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (AuditFilter(), True),
        (AuditFilter(principal="p", namespace_name="n", verb="v"), True),
        (AuditFilter(principal="q"), False),
        (AuditFilter(namespace_name=""), False),
        (AuditFilter(verb="w"), False),
    ],
)
def test_a_filter_wants_what_has_all_that_it_names(wanted: AuditFilter, found: bool) -> None:
    assert wanted.wants(AuditRecord(1, "h", 1, "", "p", "", "", "v", "n", "", "", "OK")) is found
