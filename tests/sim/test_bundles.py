"""Items that hosts keep in bundles, with the faults of all other runs (tests.sim), and such runs without bundles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from unittest.mock import patch

import pytest

from foqs.host.verbs import made
from foqs.model import limits
from foqs.model.item import ShardItem
from foqs.storage.shard.packs import pack_index
from tests.sim.run import Outcome, run_seed
from tests.support.deep import deep_but

SEEDS, CHUNK = 120, 20
CLUSTER_SEEDS, CLUSTER_CHUNK = 8, 2
COMPARED_SEEDS, COMPARED_CHUNK = 60, 6
QUICK_SEEDS, QUICK_CLUSTER_SEEDS, QUICK_COMPARED_SEEDS = 20, 2, 12
LOAD_S_MAX = 1.5


@pytest.mark.parametrize("first", deep_but(range(QUICK_SEEDS), range(0, SEEDS, CHUNK)))
def test_items_in_bundles_have_all_promises(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        outcome = run_seed(seed, load_s_max=LOAD_S_MAX, has_bundles=True)
        assert not outcome.complaints, str(outcome)
        counts += outcome.counts
    assert counts["items in bundles"] > 3 * CHUNK
    assert counts["bundles that were divided"] > CHUNK / 4


@pytest.mark.parametrize("first", deep_but(range(QUICK_CLUSTER_SEEDS), range(0, CLUSTER_SEEDS, CLUSTER_CHUNK)))
def test_the_same_of_clusters(first: int) -> None:
    for seed in range(first, first + CLUSTER_CHUNK):
        outcome = run_seed(seed, load_s_max=LOAD_S_MAX, is_cluster=True, has_bundles=True)
        assert not outcome.complaints, str(outcome)


@pytest.mark.parametrize("first", deep_but(range(QUICK_COMPARED_SEEDS), range(0, COMPARED_SEEDS, COMPARED_CHUNK)))
def test_a_run_is_the_same_without_bundles(first: int) -> None:
    """The deliveries are those of items by themselves. Packs are as long as their transactions in both runs."""
    with patch.object(pack_index, "_parts", _one_part):
        for seed in range(first, first + COMPARED_CHUNK):
            in_bundles = run_seed(seed, load_s_max=LOAD_S_MAX, has_bundles=True)
            with patch.object(made, "BUNDLE_ITEMS_MAX", 1):
                alone = run_seed(seed, load_s_max=LOAD_S_MAX, has_bundles=True)
            assert _shown(in_bundles) == _shown(alone), seed


def _one_part(items: Sequence[ShardItem]) -> Iterator[tuple[Sequence[ShardItem], int]]:
    if items:
        yield items, sum([item.count * limits.PACKED_ITEM_BYTES + item.size_bytes for item in items])


def _shown(outcome: Outcome) -> tuple[object, ...]:
    counts = {name: count for name, count in outcome.counts.items() if "bundles" not in name}
    return outcome.complaints, counts
