"""The items of an enqueue that have a key: each has its place in the keyed topic of its topic and key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import NamedTuple

from foqs.contract.requests import NewItem
from foqs.host import arguments
from foqs.host.registry.namespaces import Namespaces
from foqs.model.topic_name import bucketed, fair, fairness_key_fault, ordered, ordering_key_fault


class KeyedNames(NamedTuple):
    """The names of the keyed topics of a call, which the host has made. Any other hidden name is refused."""

    ordered: frozenset[str]
    """The names of the keyed topics of ordering keys, which are serial."""
    fair: frozenset[str]
    """The names of the keyed topics of fairness keys, which any shard can have."""


NO_KEYS = KeyedNames(frozenset(), frozenset())


def with_keyed_topics(
    items: Sequence[NewItem], namespaces: Namespaces, namespace_name: str
) -> tuple[Sequence[NewItem], KeyedNames]:
    """Return the items of a call, those with a valid key in their keyed topics, and the names of these.

    An item with an invalid topic or key stays as it is, and `check_item` refuses it.
    """
    number = namespaces.number_of(namespace_name)

    def buckets_of(topic: str) -> int:
        return 0 if number is None else namespaces.settings.policy(number, topic).key_buckets

    ordered_names: dict[tuple[str | None, str], str | None] = {}
    fair_names: dict[tuple[str | None, str], str | None] = {}
    found: list[NewItem] = []
    for new in items:
        name, key, fairness_key = None, new.ordering_key, new.fairness_key
        if key is not None and fairness_key is None:
            if (new.topic, key) not in ordered_names:
                ordered_names[new.topic, key] = _ordered_topic(new.topic, key, buckets_of)
            name = ordered_names[new.topic, key]
        elif fairness_key is not None and key is None:
            if (new.topic, fairness_key) not in fair_names:
                fair_names[new.topic, fairness_key] = _fair_topic(new.topic, fairness_key)
            name = fair_names[new.topic, fairness_key]
        found.append(new if name is None else _in_topic(new, name))
    return found, KeyedNames(_made(ordered_names.values()), _made(fair_names.values()))


def _made(names: Iterable[str | None]) -> frozenset[str]:
    return frozenset([name for name in names if name is not None])


def _in_topic(new: NewItem, name: str) -> NewItem:
    values = getattr(new, "__dict__", None)
    if values is None:
        other = copy(new)
    else:  # It came over the wire. This takes a tenth of the time.
        other = object.__new__(type(new))
        other.__dict__.update(values)
    other.topic, other.ordering_key, other.fairness_key = name, None, None
    return other


def _fair_topic(topic: str | None, fairness_key: str) -> str | None:
    if arguments.topic_fault(topic) or topic is None or fairness_key_fault(fairness_key, topic):
        return None
    return fair(topic, fairness_key)


def _ordered_topic(topic: str | None, ordering_key: str, buckets_of: Callable[[str], int]) -> str | None:
    if arguments.topic_fault(topic) or topic is None or ordering_key_fault(ordering_key, topic):
        return None
    buckets = buckets_of(topic)
    return bucketed(topic, ordering_key, buckets) if buckets else ordered(topic, ordering_key)
