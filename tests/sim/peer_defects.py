"""Defects of what hosts believe of each other: each lets one that says what is not true do harm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from foqs.cluster.homes import directory
from foqs.cluster.homes.directory import Directory
from foqs.cluster.homes.portions import Portions
from foqs.cluster.ownership.owner_claims import Known, OwnerClaims, ShardOwner
from foqs.cluster.ownership.owner_map import OwnerMap
from foqs.cluster.peers.peer_claims import PeerClaims
from foqs.model.shared_caps import CapAsk
from foqs.model.stocks import Pointer, Stock, Topic
from tests.sim.planting import in_place_of, plant

_take = OwnerClaims._take
_believe = OwnerMap._believe
_report = Directory.report


def believes_an_epoch_for_ever() -> Any:
    return patch.object(OwnerClaims, "are_due", False)


_of_a_property = believes_an_epoch_for_ever
plant(__name__, _of_a_property.__name__, _of_a_property, lambda _: True)


@in_place_of(OwnerClaims, "_take")
def takes_the_claim_of_a_shard_that_there_is_not(self: OwnerClaims, owner: ShardOwner, known: Known | None) -> bool:
    return _take(self, owner, known or Known(0, None))


@in_place_of(OwnerMap, "_believe")
def ignores_what_is_of_a_lower_epoch(self: OwnerMap, shard_ids: Iterable[int]) -> None:
    """As it was: what is told of a later epoch wins, whoever tells it."""
    before = dict(self._owners)
    _believe(self, shard_ids)
    for shard_id, owner in before.items():
        if (now := self._owners.get(shard_id)) is not None and now.epoch < owner.epoch:
            self._owners[shard_id] = owner


@in_place_of(OwnerClaims, "_take")
def believes_it_again_each_time_that_it_is_said(self: OwnerClaims, owner: ShardOwner, known: Known | None) -> bool:
    self._first_s.clear()
    return _take(self, owner, known)


def _report_while_there_is_room(
    self: Directory, host_id: str, topic: Topic, stock: Stock, now_s: float
) -> list[tuple[str, Pointer]]:
    if stock.ready_count and topic not in self._entries and len(self._entries) >= directory.TOPICS_OF_HOME_MAX:
        return []
    return _report(self, host_id, topic, stock, now_s)


def lets_one_host_fill_a_home() -> Any:
    """As it was: who comes when the table is full finds no place."""
    patches = ExitStack()
    patches.enter_context(patch.object(Portions, "put", lambda self, host_id, key: []))
    patches.enter_context(patch.object(Directory, "report", _report_while_there_is_room))
    return patches


plant(__name__, lets_one_host_fill_a_home.__name__, lets_one_host_fill_a_home, lambda _: True)


@in_place_of(PeerClaims, "asks")
def takes_rates_and_counts_as_they_come(self: PeerClaims, peer: str, told: Sequence[Any]) -> list[CapAsk]:
    return [
        CapAsk(
            (at.namespace_number, at.topic), at.per_second, at.wanted_count, at.held_count, at.unused_count, at.weight,
            bool(at.is_short),
        )
        for at in told
    ]  # fmt: skip
