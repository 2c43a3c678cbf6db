"""Where defects are planted, which there are, and how the simulation is held against each."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, count, islice
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.sim.chance import Profile
from tests.sim.run import profile_of, run_seed

SEEDS_MAX = 600
"""Most show within a few seeds, and the rarest in about one in two hundred, which differ with every change."""

SHOWN_BY = {
    "calls_the_repeat_of_an_ack_that_was_done_stale": 29,
    "exports_an_item_of_both_parts_of_a_page_twice": 198,
    "forgets_the_cap_of_the_namespace": 17,
    "gives_a_number_again_after_a_restore": 403,
    "gives_its_shards_up_when_the_meta_database_is_away": 9,
    "gives_slots_while_ids_of_them_are_on_their_way": 52,
    "hands_items_to_hosts_of_another_tier": 34,
    "hands_on_what_was_handed_on": 38,
    "ignores_the_delay_of_a_nack": 57,
    "lets_the_whole_cap_through_itself": 23,
    "makes_up_for_the_time_that_claims_took": 12,
    "moves_an_evicted_batch_with_ids_to_another_shard": 26,
    "moves_the_edge_past_living_ids": 85,
    "redrives_without_a_new_ttl": 178,
    "says_that_nothing_was_done_of_a_commit_whose_outcome_is_unknown": 50,
    "takes_a_part_of_an_image_for_written_before_it_is_committed": 187,
    "takes_items_for_shards_of_another_tier": 2,
    "tells_ends_that_nobody_knows_of": 483,
    "uses_tokens_before_their_time": 28,
    "waits_for_a_slice_of_a_sick_shard": 44,
}
"""The seeds that showed the rare and slow ones last are tried first. What changes the simulation may change them."""


class _Defect(NamedTuple):
    plant: Callable[[], Any]
    """Gives a context in which the defect is there."""
    can_show: Callable[[Profile], bool]


_DEFECTS: dict[str, dict[str, _Defect]] = {}
"""By the module that plants them, and by name."""


def in_place_of(
    target: Any, name: str, can_show: Callable[[Profile], bool] = lambda _: True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What is decorated is a defect: it stands in place of the target's attribute.

    `can_show` says of a run whether it has the faults without which the defect changes nothing.
    """

    def add(replacement: Callable[..., Any]) -> Callable[..., Any]:
        plant(replacement.__module__, replacement.__name__, lambda: patch.object(target, name, replacement), can_show)
        return replacement

    return add


def plant(module: str, name: str, defect: Callable[[], Any], can_show: Callable[[Profile], bool]) -> None:
    _DEFECTS.setdefault(module, {})[name] = _Defect(defect, can_show)


def names(module: ModuleType) -> list[str]:
    return list(_DEFECTS[module.__name__])


def check_found(module: ModuleType, name: str, *, is_cluster: bool = False) -> None:
    """A seed is red with the defect and green without it."""
    defect = _DEFECTS[module.__name__][name]
    seeds = (seed for seed in chain([SHOWN_BY.get(name, 0)], count()) if defect.can_show(profile_of(seed)))
    with defect.plant():
        some = islice(seeds, SEEDS_MAX)
        red = next((seed for seed in some if run_seed(seed, is_cluster=is_cluster).complaints), None)
    assert red is not None, f"{SEEDS_MAX} seeds do not see it"
    assert not run_seed(red, is_cluster=is_cluster).complaints, f"seed {red} is red without the defect, too"
