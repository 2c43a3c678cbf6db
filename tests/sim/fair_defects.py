"""Defects of fairness keys: of their turns, of the priority between them, and of the names of their topics."""

from __future__ import annotations

from foqs.host.dispatch import levels, rings, tenant
from foqs.host.dispatch.levels import Levels
from foqs.host.dispatch.tenant import ReadyRing
from foqs.host.dispatch.topic_queue import TopicQueue
from foqs.host.verbs import keyed_items
from foqs.model.topic_name import fair
from tests.sim.fair_runs import run_fair
from tests.sim.planting import in_place_of, runs_with

runs_with(__name__, run_fair)

_turn = ReadyRing.turn


@in_place_of(keyed_items, "_fair_topic")
def mixes_the_items_of_all_keys(topic: str | None, fairness_key: str) -> str | None:
    return None if topic is None else fair(topic, "one")


@in_place_of(ReadyRing, "turn")
def gives_turns_by_the_number_of_items(self: ReadyRing) -> tuple[TopicQueue, int] | None:
    found = _turn(self)
    return None if found is None else (found[0], found[0].spare_count(1_000))


@in_place_of(Levels, "end_turn")
def keeps_the_turn_of_a_key(self: Levels, queue: TopicQueue, level: int) -> None:
    self.place(queue, level)


@in_place_of(tenant, "level_of")
def ignores_priority(queue: TopicQueue, *, needs_room: bool = True) -> int:
    return 0


@in_place_of(ReadyRing, "join")
def forgets_a_key_once_it_is_empty(self: ReadyRing, queue: TopicQueue) -> None:
    if self.levels is not None and queue.claims_ended_count:
        return
    self.entries.setdefault(queue, 0)
    if self.levels is not None:
        self.levels.place(queue, levels.level_of(queue))


@in_place_of(rings.Rings, "relevel")
def notices_no_urgent_item_of_a_waiting_key(self: rings.Rings, queue: TopicQueue) -> None:
    return None
