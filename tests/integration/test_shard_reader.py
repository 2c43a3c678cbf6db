"""Pages of a shard's rows while these change."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

from foqs.client.queue_items import NewItem
from foqs.dev.local_server import LocalServer
from foqs.model import order
from foqs.model.calls import ItemState
from foqs.model.limits import KIB
from foqs.storage.schema import statements as sql
from foqs.storage.shard.export_pages import ExportCriteria
from foqs.storage.shard.packs import pack_index
from foqs.storage.shard.packs.budget import PackBudget
from foqs.storage.shard.packs.pack_index import PackIndex
from foqs.storage.shard.shard_reader import ShardReader
from tests.support.running_host import running_host

pytestmark = pytest.mark.database


@pytest.mark.parametrize(
    "change", ["DELETE FROM item", "UPDATE item SET lane = -lane", "UPDATE item SET due_at = due_at + 1000"]
)
async def test_a_page_is_of_one_moment_whatever_becomes_of_its_rows(
    meta_url: str,
    shard_urls: Mapping[int, str],
    mysql_server: LocalServer,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    monkeypatch.setattr(pack_index, "PACK_ITEMS_MIN", 1_000)  # Statements of this test shall find rows.
    async with running_host(meta_url, {0: shard_urls[0]}) as running:
        await running.client.enqueue_many("jobs", [NewItem("t", b"%d" % number) for number in range(20)])
        ((lane,),) = running.rows("SELECT DISTINCT lane FROM item")
        with closing(ShardReader(0, shard_urls[0], PackIndex(PackBudget(0)))) as reader:
            rows_of = reader._rows

            def then_change(statement: str, arguments: tuple[object, ...] = ()) -> Any:
                found = rows_of(statement, arguments)
                if statement == sql.SCAN:
                    with closing(mysql_server.connect("shard_0")) as other, other.cursor() as cursor:
                        assert cursor.execute(change) == 20
                return found

            monkeypatch.setattr(reader, "_rows", then_change)
            rows, more = reader.page(lane, order.FIRST, 10)()
            assert more
            assert [row.lane for row in rows] == [lane] * 10
            assert [row.content.payload for row in rows] == [b"%d" % number for number in range(10)]
            monkeypatch.undo()
            rows, more = reader.page(lane, order.FIRST, 30)()
            assert (len(rows), more) == (20 if "due_at" in change else 0, False), "the next page is of a later one"


@pytest.mark.parametrize("with_payload", [True, False])
async def test_no_more_contents_are_read_for_a_page_of_an_export_than_it_has_room_for(
    meta_url: str, shard_urls: Mapping[int, str], monkeypatch: pytest.MonkeyPatch, with_payload: bool
) -> None:
    monkeypatch.setattr(pack_index, "PACK_ITEMS_MIN", 1_000)  # Statements of this test shall find rows.
    payload_bytes = 16 * KIB
    async with running_host(meta_url, {0: shard_urls[0]}, namespace=None) as running:
        await running.admin.create_namespace("jobs", payload_bytes_max=payload_bytes)
        for _ in range(4):
            await running.client.enqueue_many("jobs", [NewItem("t", b"x" * payload_bytes)] * 60)
        ((topic, namespace, count),) = running.rows(
            "SELECT topic, namespace, COUNT(*) FROM item JOIN topic ON number = topic GROUP BY topic"
        )
        assert count == 240
    bytes_max = 10 * payload_bytes + 1
    wanted = (frozenset(ItemState), frozenset([topic]), namespace, b"", False, with_payload, True)
    criteria = ExportCriteria(0, 1 << 50, 1_000, bytes_max, *wanted)
    with closing(ShardReader(0, shard_urls[0], PackIndex(PackBudget(0)))) as reader:
        rows_of, answers_bytes = reader._rows, list[int]()

        def measured(statement: str, arguments: tuple[object, ...] = ()) -> Any:
            found = rows_of(statement, arguments)
            answers_bytes.append(sum([len(value) for row in found for value in row if isinstance(value, bytes)]))
            return found

        monkeypatch.setattr(reader, "_rows", measured)
        rows_counts = []
        while criteria.after_key < criteria.to_key:
            answers_bytes.clear()
            page = reader.export_page(criteria, lambda _: False)()
            assert sum(answers_bytes) == sum([row.content.size_bytes for row in page.rows]) <= bytes_max
            rows_counts.append(len(page.rows))
            criteria = criteria._replace(after_key=page.up_to)
    assert rows_counts == ([10] * 24 if with_payload else [240])
