"""Images of tables in a shard's state: when they are made and deleted, and what a new owner takes of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.model import limits, seen, seen_image
from foqs.model.seen import BLOCK_IDS
from foqs.model.seen_image import HEAD_PART, ImageKey
from foqs.shard.port import SeenDigests, SeenLog, SeenPart, ShardImage
from foqs.shard.state.ops import forget, image
from foqs.shard.writer import seen_loading
from tests.support.dedup_shard import NUMBER, OneShard

pytestmark = pytest.mark.interpreted


class CountingLog:
    """A SeenLog that tells how many ids and parts were read of it, those aside that an image was held against."""

    def __init__(self, log: SeenLog) -> None:
        self.ids_count = 0
        self.parts_count = 0
        self._log = log

    def read(self, namespace: int, first: int, limit: int) -> list[SeenDigests]:
        rows = self._log.read(namespace, first, limit)
        if limit == seen_loading.SEEN_READ_ROWS:
            self.ids_count += sum([len(row.digests) // 16 for row in rows])
        return rows

    def read_parts(self, key: ImageKey, first: int, limit: int) -> list[SeenPart]:
        parts = self._log.read_parts(key, first, limit)
        self.parts_count += len(parts)
        return parts

    def interrupt(self) -> None:
        self._log.interrupt()

    def close(self) -> None:
        self._log.close()


class ImagedShard(OneShard):
    log: CountingLog

    def check(self) -> None:
        """Not after each transaction: there are many."""

    async def load(self, image: ShardImage, log: SeenLog) -> None:
        self.log = CountingLog(log)
        await super().load(image, self.log)

    @property
    def keys(self) -> list[ImageKey]:
        """Those of whole images."""
        return [found.key for found in self.stored.tables.seen_images() if found.is_whole]

    @property
    def parts(self) -> dict[tuple[ImageKey, int], bytes]:
        return self.stored.tables.seen_parts

    def work_off(self) -> None:
        """Until there is nothing to do for images."""
        for _ in range(200):
            self.now_ms += image.IMAGE_PAUSE_MS
            self.state.tick(self.now)
            self.commit()
        assert self.state.images.making is None
        assert not self.state.images.gone
        super().check()

    def fill(self, first: int, end: int, number: int = NUMBER) -> None:
        for at in range(first, end, 500):
            self.new_ids(at, min(500, end - at), number=number)
        self.work_off()


@pytest.fixture
def shard(monkeypatch: Any) -> Iterator[ImagedShard]:
    # So that few ids make several tables.
    monkeypatch.setattr(seen, "SMALL_TABLE_IDS_MAX", 1)
    monkeypatch.setattr(seen, "TABLE_IDS_RATIO", 16)
    monkeypatch.setattr(image, "IMAGE_IDS_MIN", 200)
    monkeypatch.setattr(seen_image, "IMAGE_PART_BUCKETS", 8)
    monkeypatch.setattr(seen_loading, "SEEN_READ_ROWS", 2)
    shard = ImagedShard()
    shard.set_window(ids=8_000)
    return shard


def test_full_tables_and_large_parts_of_the_growing_one_have_images(shard):
    shard.fill(0, 7_600)
    tables = [(table.first, table.count) for table in shard.state.dedup.windows[NUMBER].tables]
    assert tables == [(0, 50), (50, 800), (850, 4_000), (4_850, 2_750)]
    # The last one of each table replaces those before it; small tables have none.
    assert [(key.first, key.ids_count) for key in shard.keys] == [(50, 800), (850, 4_000), (4_850, 2_702)]


def test_a_new_owner_reads_images_and_only_the_rest_of_the_log(shard):
    shard.fill(0, 7_600)
    shard.open()
    # Those before the first image and after the last one, by whole rows.
    assert 50 + 48 <= shard.log.ids_count <= 8 * BLOCK_IDS
    assert shard.log.parts_count == sum(1 for _ in shard.parts)
    tables = [(table.first, table.count) for table in shard.state.dedup.windows[NUMBER].tables]
    assert tables == [(0, 50), (50, 800), (850, 4_000), (4_850, 2_750)]
    assert all(shard.knows(at) for at in (0, 49, 50, 849, 850, 4_849, 4_850, 7_551, 7_552, 7_599))
    assert not shard.knows(7_600)
    shard.work_off()
    assert len(shard.keys) == 3


def test_parts_are_paced_and_none_goes_with_a_transaction_that_fails(shard):
    for at in range(0, 2_000, 500):
        shard.new_ids(at, 500)
    written = []
    for _ in range(60):
        shard.now_ms += image.IMAGE_PAUSE_MS // 5
        shard.state.tick(shard.now)
        transaction = shard.state.take(shard.now, {})
        if transaction is None:
            continue
        parts = transaction.seen_parts_new
        assert len(parts) <= 1
        if parts and len(written) == 1:
            shard.state.failed("full")
            written.append(("failed", parts[0]))
            continue
        written += [(shard.now_ms, part) for part in parts]
        shard.state.committed(shard.stored.apply(transaction), shard.now)
    assert written[1][0] == "failed"
    assert written[1][1] == written[2][1]
    times = [at_ms for at_ms, _ in written if at_ms != "failed"]
    assert len(times) > 5
    assert all(second - first >= image.IMAGE_PAUSE_MS for first, second in pairwise(times))


def test_images_of_forgotten_tables_go_with_all_their_parts(shard):
    shard.fill(0, 7_600)
    shard.fill(7_600, 20_000)
    window = shard.state.dedup.windows[NUMBER]
    assert window.edge == 12_000
    assert {key.first for key in shard.keys} == {table.first for table in window.tables}
    assert {key for key, _ in shard.parts} == set(shard.keys)
    shard.rest(2 * limits.DAY_MS)
    shard.work_off()
    assert shard.parts == {}


def test_an_image_that_is_being_made_of_a_table_that_goes_is_given_up(shard):
    for at in range(0, 2_000, 500):
        shard.new_ids(at, 500)
    while len(shard.parts) < 2:
        shard.now_ms += image.IMAGE_PAUSE_MS
        shard.state.tick(shard.now)
        shard.commit()
    assert shard.keys == []
    shard.rest(2 * limits.DAY_MS)
    shard.work_off()
    assert shard.parts == {}


def test_the_images_of_a_deleted_namespace_go(shard):
    shard.fill(0, 7_600)
    shard.fill(0, 2_000, number=NUMBER + 1)
    shard.state.index.namespaces.pop(NUMBER, None)
    by_number = dict(shard.settings.by_number)
    del by_number[NUMBER]
    shard.settings.replace(by_number)
    shard.state.forgetfulness.tick(shard.now)
    shard.now_ms += forget.UNKNOWN_NAMESPACE_MS
    for _ in range(100):
        shard.now_ms += image.IMAGE_PAUSE_MS
        shard.state.tick(shard.now)
        transaction = shard.state.take(shard.now, {})
        if transaction is not None:
            shard.state.committed(shard.stored.apply(transaction), shard.now)
    assert {key.namespace for key, _ in shard.parts} == {NUMBER + 1}


def test_what_the_last_owner_left_of_an_image_is_deleted_and_the_log_read(shard):
    shard.fill(0, 7_600)
    key, parts_count = shard.keys[1], len(shard.parts)
    del shard.parts[key, HEAD_PART]
    with capture_logs() as logs:
        shard.open()
    assert not [log for log in logs if log["event"] == "dedup_image_not_used"]
    assert shard.log.ids_count > key.ids_count
    assert all(shard.knows(at) for at in (0, 850, 4_849, 4_850, 7_599))
    shard.work_off()
    assert (len(shard.keys), len(shard.parts)) == (3, parts_count)


@pytest.mark.parametrize("broken", [0, 1, 2])
@pytest.mark.parametrize("number", [HEAD_PART, 1])
def test_a_torn_image_is_deleted_and_the_log_read_instead(shard, broken, number):
    shard.fill(0, 7_600)
    key = shard.keys[broken]
    shard.parts[key, number] = shard.parts[key, number][:-1] + b"?"
    with capture_logs() as logs:
        shard.open()
    (told,) = [log for log in logs if log["event"] == "dedup_image_not_used"]
    assert "another checksum" in told["error"]
    assert shard.log.ids_count > key.ids_count
    assert all(shard.knows(at) for at in (0, 49, 50, 849, 850, 4_849, 4_850, 7_551, 7_599))
    assert not shard.knows(7_600)


def test_an_image_of_a_log_that_began_anew_is_not_used(shard):
    """A namespace that was deleted and recovered has its old number; of its images some may be left."""
    shard.fill(0, 3_000)
    left = dict(shard.parts)
    tables = shard.stored.tables
    tables.seen.clear()
    tables.seen_parts.clear()
    shard.open()
    for at in range(10_000, 13_000, 500):
        shard.new_ids(at, 500)
    tables.seen_parts.clear()
    tables.seen_parts.update(left)
    with capture_logs() as logs:
        shard.open()
    told = [log["error"] for log in logs if log["event"] == "dedup_image_not_used"]
    assert len(told) == len({key for key, _ in left})
    assert all("of another log" in error for error in told)
    assert [shard.knows(at) for at in (10_000, 11_000, 12_999)] == [True] * 3
    assert not shard.knows(100)


def test_an_image_beyond_the_end_of_the_log_or_before_its_begin_is_deleted(shard):
    shard.fill(0, 7_600)
    tables = shard.stored.tables
    for row in [row for row in tables.seen if row[1] >= 6_000 or row[1] < 1_024]:
        del tables.seen[row]
    shard.open()
    window = shard.state.dedup.windows[NUMBER]
    assert (window.edge, window.tables[0].first) == (1_024, 850)
    assert shard.knows(1_100)
    assert not shard.knows(1_000)
    shard.work_off()
    assert {key.first for key in shard.keys}.isdisjoint({50})
    assert all(key.end <= window.end for key in shard.keys)
    assert {key for key, _ in shard.parts} == set(shard.keys)
