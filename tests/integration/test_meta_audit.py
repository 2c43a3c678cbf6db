"""The audit in a real meta database: written once, read by pages, pruned; and the fake one does the same."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import event

from foqs.cli.main import cli
from foqs.host.verbs import audit_list
from foqs.model.audit import START, AuditPlace, AuditRecord
from foqs.model.errors import InvalidArgumentError
from foqs.storage.meta.meta_store import MetaStore
from foqs.testing.fake_meta import memory_meta
from tests.support.running_host import running_host
from tests.support.waiting import eventually

RECORD = AuditRecord(5, "a:1#1", 1, "r-1", "mailer", "tk", "10.0.0.7", "removeShard", "", "shard_id=1", "", "OK", 3, 4)


@pytest.fixture(params=["mysql", "fake"])
def audit(request: pytest.FixtureRequest, meta_url: str) -> Iterator[Any]:
    if request.param == "fake":
        yield memory_meta(lambda: 0).audit
        return
    with closing(MetaStore(meta_url)) as store:
        yield store.audit


def test_a_record_comes_back_as_it_was_and_is_there_once_however_often_it_is_written(audit: Any) -> None:
    snow = replace(RECORD, number=2, changes="reason='\N{SNOWMAN}'")
    audit.write([])
    audit.write([RECORD])
    audit.write([snow, replace(RECORD, outcome="changed")])
    assert audit.page(START, 10, 100) == [RECORD, snow]


def test_pages_follow_one_another_and_hold_each_record_once(audit: Any) -> None:
    places = [
        AuditPlace(at_ms, host, number) for at_ms in range(3) for host in ("a", "b", "ä") for number in (1, 2, 1 << 40)
    ]
    records = [replace(RECORD, at_ms=place.at_ms, host=place.host, number=place.number) for place in places]
    random.Random(1).shuffle(records)
    audit.write(records)
    found, after = [], START
    while page := audit.page(after, 2, 4):
        found += page
        after = page[-1].place
    assert [record.place for record in found] == [place for place in places if place.at_ms < 2]


def test_the_oldest_are_pruned_and_nothing_else(audit: Any) -> None:
    audit.write([replace(RECORD, at_ms=at_ms, number=number) for at_ms in (1, 2, 3) for number in (1, 2)])
    assert audit.prune(3, 3) == 3
    assert [record.place[::2] for record in audit.page(START, 10, 10)] == [(2, 2), (3, 1), (3, 2)]
    assert (audit.prune(3, 3), audit.prune(3, 3)) == (1, 0)
    assert len(audit.page(START, 10, 10)) == 2


def test_a_page_reads_by_the_key(meta_url: str) -> None:
    with closing(MetaStore(meta_url)) as meta:
        meta.audit.write([replace(RECORD, at_ms=at_ms) for at_ms in range(1_000)])
        said: list[tuple[str, Any]] = []
        listened = event.listens_for(meta._sessions._engine, "before_cursor_execute")
        listened(lambda _conn, _cursor, statement, values, _context, _many: said.append((statement, values)))
        meta.audit.page(AuditPlace(900, "", 0), 10_000, 10)
        with meta._sessions.transaction() as connection:
            (statement, values) = said[-1]
            (plan,) = connection.exec_driver_sql("EXPLAIN " + statement, values).mappings().all()
    assert (plan["key"], plan["type"]) == ("PRIMARY", "range")
    assert int(plan["rows"]) <= 200


async def test_a_host_records_a_change_and_a_refused_one(meta_url: str, shard_urls: dict[int, str]) -> None:
    async with running_host(meta_url, {0: shard_urls[0]}) as host:
        await host.admin.update_namespace("jobs", attempts_max=9)
        with pytest.raises(InvalidArgumentError):
            await host.admin.update_namespace("jobs", attempts_max=-1)
        with closing(MetaStore(meta_url)) as meta:

            async def records() -> list[AuditRecord]:
                return [one for one in meta.audit.page(START, 1 << 60, 100) if one.verb == "updateNamespace"]

            done, refused = await eventually(records, lambda found: len(found) == 2)
    assert (done.principal, done.namespace_name, done.outcome) == ("everybody", "jobs", "OK")
    assert done.changes.startswith("attempts_max=")
    assert done.changes.endswith(" -> 9")
    assert refused.outcome == "INVALID_ARGUMENT"


async def test_pages_of_a_filter_hold_each_record_once_though_some_are_empty(
    meta_url: str, shard_urls: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_list, "RECORDS_READ_MAX", 5)
    verbs = ["removeShard"] * 12 + ["deleteItems"] + ["removeShard"] * 9 + ["deleteItems"]
    async with running_host(meta_url, {0: shard_urls[0]}) as host:
        with closing(MetaStore(meta_url)) as meta:
            meta.audit.write([replace(RECORD, number=number, verb=verb) for number, verb in enumerate(verbs)])
        for wanted, count in (({"verb": "deleteItems"}, 2), ({"until_ms": 6}, 23), ({"principal": "nobody"}, 0)):
            found, token, pages_count = [], "", 0
            while True:
                page = await host.admin.list_audit(limit=4, page_token=token, until_ms=wanted.get("until_ms"), **{
                    name: value for name, value in wanted.items() if name != "until_ms"
                })  # fmt: skip
                found += page.records
                pages_count += 1
                token = page.next_page_token
                if not token:
                    break
            assert len({record.place for record in found}) == len(found) == count
            assert pages_count >= 5
        with pytest.raises(InvalidArgumentError, match="page_token"):
            await host.admin.list_audit(page_token="x")


async def test_the_command_lists_records_and_the_schema_user_prunes_them(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    async with running_host(meta_url, {0: shard_urls[0]}) as host:
        await host.admin.update_namespace("jobs", attempts_max=9)
        asked = ["audit", "list", "--address", f"127.0.0.1:{host.host.port}", "--output", "json", "--verb"]

        async def listed() -> list[dict[str, Any]]:
            done = await asyncio.to_thread(CliRunner().invoke, cli, [*asked, "updateNamespace"])
            assert done.exit_code == 0, done.output
            return [json.loads(line) for line in done.stdout.splitlines()]

        (record,) = await eventually(listed, bool)
        assert (record["namespace_name"], record["outcome"], record["count"]) == ("jobs", "OK", 1)
        table = await asyncio.to_thread(CliRunner().invoke, cli, [*asked[:4], "--since", "1h"])
        assert "updateNamespace" in table.stdout
        wrong = await asyncio.to_thread(CliRunner().invoke, cli, [*asked[:4], "--since", "yesterday"])
        assert (wrong.exit_code, "give 15m, 6h or 7d" in wrong.output) == (2, True)
    pruned = CliRunner().invoke(cli, ["schema", "prune-audit", "--before", "0s"], env={"FOQS_META_URL": meta_url})
    assert pruned.exit_code == 0, pruned.output
    with closing(MetaStore(meta_url)) as meta:
        assert [record.verb for record in meta.audit.page(START, 1 << 60, 10)] == ["pruneAudit"]
