"""Defects of the depth, the backoff and the expiry of topics: each is found by what users see of a MemoryQueue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from math import inf
from typing import Any
from unittest.mock import patch

from foqs.cluster.homes import other_depths
from foqs.cluster.homes.other_depths import OtherDepths
from foqs.host.admission.depths import Depths, Room
from foqs.host.verbs.item_maker import ItemMaker
from foqs.model.errors import FoqsError, PausedError
from foqs.model.namespace import SettingsTable
from foqs.model.policy import TriState
from foqs.model.stocks import Topic
from foqs.model.topic_name import parts
from foqs.shard.state.ops.settle import Settlements
from foqs.testing import MemoryQueue
from tests.attack.seeding import Check, found_by, in_place_of, test_at
from tests.contract.queue_world import NS, ONCE, World

_take = Room.take
_make_items = ItemMaker.make_items
_failed_attempt = Settlements.failed_attempt
_backoff_ms = SettingsTable.backoff_ms
_dead_letter_on_expiry = SettingsTable.dead_letter_on_expiry
_refresh = OtherDepths._refresh


def on_memory(place: str) -> Check:
    """A test of the contract on a MemoryQueue."""

    def check() -> object:
        with MemoryQueue(NS) as queue:
            clients = [queue.client(retry=ONCE), queue.admin(retry=ONCE), queue.client(retry=ONCE, idempotent=True)]
            try:
                return test_at(f"contract.{place}")(World(*clients))  # type: ignore[arg-type]
            except (FoqsError, ValueError) as error:  # A call was refused, or returned too few items to unpack.
                raise AssertionError(f"{error!r}") from error

    return check


def of_other_hosts(name: str) -> Check:
    return test_at(f"unit.test_other_depths:{name}")


_BEYOND = on_memory("test_depths:test_an_enqueue_beyond_the_depth_is_refused_at_its_position_until_there_is_room")
_DEAD = on_memory(
    "test_depths:test_delayed_items_count_and_dead_letters_do_not_and_a_redrive_is_never_refused"
)  # fmt: skip
_GROUPS = on_memory(
    "test_depths:test_an_item_is_refused_as_a_whole_if_one_group_is_full_and_groups_count_by_themselves"
)
_REPEATS = on_memory("test_depths:test_a_repeat_gets_the_id_of_its_first_item_although_the_topic_is_full")
_EXPIRY = on_memory(
    "test_failure_policies:test_a_topic_a_prefix_and_a_group_say_whether_what_expires_becomes_a_dead_letter"
)
_LONGER = on_memory("test_failure_policies:test_an_item_that_fails_waits_longer_each_time_up_to_the_longest_backoff")
_LOST = on_memory("test_failure_policies:test_a_lost_lease_has_the_backoff_and_a_release_or_a_delay_of_its_own_has_not")
_OF_GROUPS = on_memory("test_failure_policies:test_a_prefix_and_a_group_have_their_own_backoff")


# ---- depth ----


def _here(self: Depths, topic: Topic, counted: Iterable[str], *, with_arriving: bool = True) -> int:
    found = [shard.index.topics.get(topic) for _, shard in self._owned()]
    stored = sum([getattr(one, field) for one in found if one is not None for field in counted])
    return stored + with_arriving * self.arriving[topic]


@in_place_of(Depths, "here", _DEAD)
def counts_dead_letters(self: Depths, topic: Topic) -> int:
    return _here(self, topic, ("rows", "delayed", "dead"))


@in_place_of(Depths, "here", _DEAD)
def forgets_delayed_items(self: Depths, topic: Topic) -> int:
    return _here(self, topic, ("rows",))


@in_place_of(Depths, "here", _BEYOND)
def forgets_leased_items(self: Depths, topic: Topic) -> int:
    return _here(self, topic, ("ready", "delayed"))


@in_place_of(Room, "close", _BEYOND)
def keeps_the_room_of_stored_items(self: Room) -> None:
    """They count twice from then on."""


@in_place_of(Room, "take", _GROUPS)
def asks_one_group_alone(self: Room, names: Sequence[str]) -> PausedError | None:
    return _take(self, names[:1])


@in_place_of(ItemMaker, "make_items", _REPEATS)
def takes_room_for_repeats(self: ItemMaker, *given: Any, takes_room: bool = True) -> Any:
    return _make_items(self, *given, takes_room=True)


@in_place_of(
    OtherDepths, "_refresh",
    of_other_hosts("test_the_first_enqueue_waits_for_the_counts_of_all_hosts_and_the_next_ones_use_them"),
)  # fmt: skip
def lets_enqueues_pass_before_hosts_have_answered(
    self: OtherDepths, topics: Sequence[Topic]
) -> set[asyncio.Future[None]]:
    _refresh(self, topics)
    return set()


@in_place_of(
    OtherDepths, "count",
    of_other_hosts("test_a_host_that_does_not_answer_keeps_its_last_count_and_one_that_is_gone_has_none"),
)  # fmt: skip
def counts_hosts_that_are_gone(self: OtherDepths, topic: Topic) -> int:
    """Their shards have other owners, which count the same items."""
    known = self._known.get(topic)
    return 0 if known is None else sum(known.by_host.values())


@found_by(of_other_hosts("test_counts_that_are_not_fresh_are_asked_for_beside_the_enqueue_and_old_ones_before_it"))
def believes_counts_of_any_age() -> AbstractContextManager[Any]:
    return patch.object(other_depths, "STALE_MS", inf)


# ---- expiry ----


@in_place_of(SettingsTable, "dead_letter_on_expiry", _EXPIRY)
def takes_an_unset_flag_for_off(self: SettingsTable, number: int, topic: str) -> bool:
    return self.policy(number, topic).dead_letter_on_expiry is TriState.ON


@in_place_of(SettingsTable, "dead_letter_on_expiry", _EXPIRY)
def asks_the_topic_for_its_groups(self: SettingsTable, number: int, topic: str) -> bool:
    return _dead_letter_on_expiry(self, number, parts(topic)[0])


# ---- backoff ----


@in_place_of(SettingsTable, "backoff_ms", _LONGER)
def never_doubles(self: SettingsTable, number: int, topic: str, failed_attempts: int) -> int:
    return _backoff_ms(self, number, topic, 1)


@in_place_of(SettingsTable, "backoff_ms", _LONGER)
def doubles_without_a_bound(self: SettingsTable, number: int, topic: str, failed_attempts: int) -> int:
    return self.policy(number, topic).backoff_ms << (failed_attempts - 1)


@in_place_of(SettingsTable, "backoff_ms", _OF_GROUPS)
def delays_groups_as_their_topic(self: SettingsTable, number: int, topic: str, failed_attempts: int) -> int:
    return _backoff_ms(self, number, parts(topic)[0], failed_attempts)


@in_place_of(Settlements, "failed_attempt", _LOST)
def delays_what_is_released(self: Settlements, item: Any, now_ms: int, **how: Any) -> Any:
    if how.get("release"):
        how["delay_ms"] = _backoff_ms(self._index.settings, item.topic.namespace, item.topic.name, 1)
    return _failed_attempt(self, item, now_ms, **how)


@in_place_of(Settlements, "failed_attempt", _LOST)
def delays_nacks_alone(self: Settlements, item: Any, now_ms: int, **how: Any) -> Any:
    if how.get("cause") == "lease ended":
        how["delay_ms"] = 1
    return _failed_attempt(self, item, now_ms, **how)


@in_place_of(Settlements, "failed_attempt", _LOST)
def overrides_the_delay_of_a_nack(self: Settlements, item: Any, now_ms: int, **how: Any) -> Any:
    return _failed_attempt(self, item, now_ms, **{**how, "delay_ms": 0})
