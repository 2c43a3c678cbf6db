"""Defects of hosts that copies of a database confuse: of who may take a shard where, and of what is told of a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from foqs.model.cluster import ShardRow
from foqs.model.shard_place import EpochAsk
from foqs.shard.writer import place
from foqs.shard.writer.ownership import Ownership
from foqs.shard.writer.place import ShardPlace
from foqs.storage.meta.meta_shards import check_place
from foqs.testing import fake_cluster
from tests.sim.copies import run_copies
from tests.sim.planting import in_place_of, plant, runs_with

runs_with(__name__, run_copies)

_check_place = check_place
IsDead = Callable[[str, int], bool]


@in_place_of(fake_cluster, "check_place")
def takes_a_shard_on_another_server_while_its_owner_lives(
    shard_id: int, owner: str, ask: EpochAsk, before: ShardRow | None, is_dead: IsDead
) -> None:
    if ask.is_renewal:
        _check_place(shard_id, owner, ask, before, is_dead)


@in_place_of(fake_cluster, "check_place")
def keeps_its_epoch_beside_a_copy(
    shard_id: int, owner: str, ask: EpochAsk, before: ShardRow | None, is_dead: IsDead
) -> None:
    if not ask.is_renewal:
        _check_place(shard_id, owner, ask, before, is_dead)


@in_place_of(place, "lost_by_row")
def counts_no_loss_that_the_last_owner_has_told_of(before: Any, found: Any) -> int:
    return 0


@in_place_of(place, "lost_by_memory")
def counts_no_loss_of_which_it_alone_knows(before: Any, found: Any, mine: Any) -> int:
    return 0


def leaves_its_server_too_early() -> Any:
    """While it serves the shard there."""
    return patch.object(ShardPlace, "is_to_leave", property(lambda self: True))


_of_a_property = leaves_its_server_too_early
plant(__name__, _of_a_property.__name__, _of_a_property, lambda _: True)


@in_place_of(Ownership, "_check_clock")
def does_not_notice_that_it_stood_still(self: Ownership) -> None:
    return None
