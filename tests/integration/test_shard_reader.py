"""Pages of a shard's rows while these change."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

from foqs.client.items import NewItem
from foqs.dev.local_server import LocalServer
from foqs.model import order
from foqs.storage import statements as sql
from foqs.storage.packs import index as pack_index
from foqs.storage.packs.budget import PackBudget
from foqs.storage.packs.index import PackIndex
from foqs.storage.shard_reader import ShardReader
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
