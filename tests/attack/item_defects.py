"""Defects of what finds items: each lets the ids of one namespace lead to its items from another one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from foqs.host.verbs.exports import Exports
from foqs.host.verbs.inspection import Inspection
from foqs.host.verbs.settlements import Leases
from foqs.testing.memory_queue import MemoryQueue
from tests.attack.seeding import in_place_of, test_at

_find_lease = Leases._find_lease
_look_up = Inspection._look_up
_criteria = Exports._criteria
PLACE = "attack.test_foreign_ids"


def with_two_namespaces() -> object:
    """What one namespace gave is tried in another one."""
    with MemoryQueue(["orders", "mails"], principals=test_at(f"{PLACE}:PRINCIPALS")) as queue:
        return test_at(f"{PLACE}:test_what_one_namespace_gave_is_of_no_use_in_another")(queue)


class _AnyNumber(int):
    """The number of a namespace that is every other one, too."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _of_any(namespace: Any) -> Any:
    """The same namespace, which nothing is found not to be of."""

    return SimpleNamespace(number=_AnyNumber(namespace.number), name=namespace.name, settings=namespace.settings)


@in_place_of(Leases, "_find_lease", with_two_namespaces)
def takes_the_receipts_of_others(self: Leases, namespace: Any, receipt: str, by_shard: Any) -> Any:
    return _find_lease(self, _of_any(namespace), receipt, by_shard)


@in_place_of(Inspection, "_look_up", with_two_namespaces)
def takes_the_ids_of_others(self: Inspection, namespace: Any, *more: Any, with_payload: bool) -> None:
    _look_up(self, _of_any(namespace), *more, with_payload=with_payload)


@in_place_of(Exports, "_criteria", with_two_namespaces)
def believes_the_split_of_others(self: Exports, shard: Any, namespace: Any, wanted: Any) -> Any:
    """As if a split said of which namespace it is, and that were believed."""
    return _criteria(self, shard, SimpleNamespace(number=min(shard.index.namespaces)), wanted)  # type: ignore[arg-type]
