"""The contract of a store for reads that come back short: nothing is taken for absent that a read did not bring."""

from __future__ import annotations

from itertools import count

import pytest

from foqs.model.seen import BLOCK_IDS
from foqs.model.seen_image import ImageKey
from foqs.shard.port import OwnershipLostError, SeenIds, SeenPart, SessionLostError, ShardImage
from tests.contract.owner import Owner, new_item, new_topic, opened

KEY, OTHER = ImageKey(1, 0, 4 * BLOCK_IDS), ImageKey(1, 0, 3 * BLOCK_IDS)
NAMESPACES = [(1, b"one"), (2, b"two"), (3, b"three")]
TRIES_MAX = 1_000


def new_ids(namespace, block):
    """A whole block, in two rows."""
    half, first = BLOCK_IDS // 2, block * BLOCK_IDS
    return [
        SeenIds(namespace, at, 5, [at.to_bytes(16, "big")] * half, range(at, at + half)) for at in (first, first + half)
    ]


@pytest.fixture
def owner(shard):
    """Of a shard that has some of everything that a new owner reads."""
    owner = Owner(shard)
    topics = [new_topic(n, f"t{n}", n) for n, _ in NAMESPACES]
    owner.run(namespaces_new=NAMESPACES, topics_new=topics)
    owner.run(inserts=[new_item(key, topic=topics[key % 3]) for key in range(5, 20)])
    owner.run(seen_new=[ids for block in range(4) for ids in new_ids(1, block)] + new_ids(2, 0))
    owner.run(seen_parts_new=[SeenPart(key, number, b"x") for key in (KEY, OTHER) for number in range(4)])
    return owner


def known(image: ShardImage) -> list[object]:
    return [sorted(image.topics), sorted(image.namespaces), image.claims, image.claimed_rows, sorted(image.seen),
            sorted(image.seen_images)]  # fmt: skip


def test_whichever_read_of_a_new_owner_comes_back_short_it_knows_all_or_does_not_open(shard, owner):
    owner.store.close()
    whole = known(Owner(shard).image)
    assert [len(part) for part in (whole[0], whole[1], whole[4], whole[5])] == [3, 3, 2, 2]
    for rows_max in (1, 2):
        refused_count = 0
        for at in count():
            for _ in range(TRIES_MAX):  # A server can notice late that a session was closed.
                with shard.cut_reads(rows_max, at) as cut:
                    store = shard.store("host")
                    try:
                        found = known(opened(store))
                    except (SessionLostError, OwnershipLostError):
                        found = None
                    finally:
                        store.close()
                if cut.cut_count or found is not None:
                    break
            assert found in (None, whole), f"{rows_max} rows of read {at}"
            refused_count += found is None
            if not cut.cut_count:
                break
        assert refused_count > 3


@pytest.mark.parametrize("rows_max", range(4))
def test_a_part_of_a_log_or_of_an_image_is_not_taken_for_all_of_it(shard, owner, rows_max):
    owner.store.close()
    log = Owner(shard).image.seen_log
    for read, rows_count in ((lambda: log.read(1, 0, 100), 8), (lambda: log.read_parts(KEY, 0, 9), 4)):
        assert len(read()) == rows_count
        with shard.cut_reads(rows_max), pytest.raises(SessionLostError):
            read()
    log.close()


def test_a_part_of_a_block_is_not_taken_for_the_whole_block(shard, owner):
    block = {(1, 0): 2}
    assert {at: len(rows) for at, rows in owner.run(seen_reads=[(1, 0)]).seen.items()} == block
    with shard.cut_reads(1), pytest.raises(OwnershipLostError, match="came to no end"):
        owner.run(seen_reads=[(1, 0)], seen_new=[SeenIds(2, BLOCK_IDS, 5, [bytes(16)], [1])])
    owner.store.close()
    owner = Owner(shard)
    assert {at: len(rows) for at, rows in owner.run(seen_reads=[(1, 0), (2, 1)]).seen.items()} == block
