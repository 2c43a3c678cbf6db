"""The contract of consumers finds the defects that are planted into them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from foqs.host.dispatch.consumers import Consumers
from foqs.host.dispatch.deliveries import Deliveries
from foqs.host.verbs.consumer_rows import ConsumerRows
from foqs.host.verbs.consumer_verbs import _Release, _Wanted
from foqs.model.holder import LeaseHolder
from foqs.shard.state.ops.settle import Settlements
from tests.contract import test_consumers as consumers
from tests.contract.queue_world import World

_ATTEMPT, _ADD, _DELIVER = Settlements._after_failure, ConsumerRows.add, Deliveries._deliver_to
_SOME = _Release.some


def counts_an_attempt(self: Settlements, *arguments: Any, **more: Any) -> Any:
    """As a nack does, whatever the end of the lease is."""
    return _ATTEMPT(self, *arguments, **{**more, "release": False})


def has_topics_of_all_namespaces(self: _Wanted, topic: Any) -> bool:
    return self.has_names(*topic.shown)


def releases_what_others_have(self: _Release, shard: Any, item: Any) -> bool:
    return bool(self._wanted.has(item.topic)) and item.phase == 5


def names_only_the_first_item(self: Deliveries, call: Any) -> bool:
    holder = call.holder
    call.holder = None
    done = _DELIVER(self, call)
    call.holder = holder
    for item in (call.items or ())[:1]:
        item.holder = holder
    return done


def leaves_the_name_at_an_extension(self: Consumers, namespace: int, name: str) -> None:
    return None


def makes_a_consumer_of_each_call(self: Consumers, known: Any, namespace: int, name: str) -> LeaseHolder:
    holder = LeaseHolder(f"{name}{len([*known.all()])}", self.clock())
    known.put(namespace, holder.name, holder)
    return holder


def counts_each_kind_of_leases_once(
    self: ConsumerRows, key: Any, holder: Any, waiting: int = 0, held: int = 0, since_ms: int = 0
) -> None:
    _ADD(self, key, holder, waiting, min(held, 1), since_ms)


def deletes_what_is_delivered_once(self: _Release, *arguments: Any, **more: Any) -> Any:
    self._at_most_once = True
    return _SOME(self, *arguments, **more)


CASES = [
    (Settlements, "_after_failure", counts_an_attempt,
     consumers.test_the_leases_of_a_consumer_end_without_a_failed_attempt),
    (_Wanted, "has", has_topics_of_all_namespaces,
     consumers.test_consumers_of_other_namespaces_are_not_listed_and_not_released),
    (_Release, "_is_wanted", releases_what_others_have,
     consumers.test_the_leases_of_a_consumer_end_without_a_failed_attempt),
    (Deliveries, "_deliver_to", names_only_the_first_item, consumers.test_the_list_counts_by_name_and_topic),
    (Consumers, "holds", leaves_the_name_at_an_extension,
     consumers.test_an_extension_names_its_consumer_and_one_without_a_name_changes_nothing),
    (Consumers, "_called", makes_a_consumer_of_each_call, consumers.test_a_name_that_is_used_again_is_one_consumer),
    (ConsumerRows, "add", counts_each_kind_of_leases_once, consumers.test_the_list_counts_by_name_and_topic),
    (_Release, "some", deletes_what_is_delivered_once,
     consumers.test_items_that_are_delivered_once_stay_unless_the_call_says_so),
]  # fmt: skip


@pytest.mark.interpreted
@pytest.mark.parametrize(("place", "name", "defect", "check"), CASES, ids=[case[2].__name__ for case in CASES])
def test_a_defect_is_found(
    memory: World, place: type, name: str, defect: Callable[..., Any], check: Callable[[World], None]
) -> None:
    with patch.object(place, name, defect), pytest.raises(AssertionError):
        check(memory)
