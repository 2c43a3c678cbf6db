"""The items of an enqueue that have an ordering key: each goes to the keyed topic of its topic and key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

from foqs.contract.requests import NewItem
from foqs.host import arguments
from foqs.host.registry.namespaces import Namespaces
from foqs.model.topic_name import bucketed, ordered, ordering_key_fault


def with_keyed_topics(
    items: Sequence[NewItem], namespaces: Namespaces, namespace_name: str
) -> tuple[Sequence[NewItem], frozenset[str]]:
    """Return the items of a call, those with a valid ordering key in their keyed topics, and the names of these.

    An item with an invalid topic or key stays as it is, and `check_item` refuses it.
    """
    number = namespaces.number_of(namespace_name)

    def buckets_of(topic: str) -> int:
        return 0 if number is None else namespaces.settings.policy(number, topic).key_buckets

    names: dict[tuple[str | None, str], str | None] = {}
    found: list[NewItem] = []
    for new in items:
        key = new.ordering_key
        if key is None:
            found.append(new)
            continue
        if (new.topic, key) not in names:
            names[new.topic, key] = _keyed_topic(new.topic, key, buckets_of)
        name = names[new.topic, key]
        found.append(new if name is None else _in_topic(new, name))
    return found, frozenset([name for name in names.values() if name is not None])


def _in_topic(new: NewItem, name: str) -> NewItem:
    values = getattr(new, "__dict__", None)
    if values is None:
        other = copy(new)
    else:  # It came over the wire. This takes a tenth of the time.
        other = object.__new__(type(new))
        other.__dict__.update(values)
    other.topic, other.ordering_key = name, None
    return other


def _keyed_topic(topic: str | None, ordering_key: str, buckets_of: Callable[[str], int]) -> str | None:
    if arguments.topic_fault(topic) or topic is None or ordering_key_fault(ordering_key, topic):
        return None
    buckets = buckets_of(topic)
    return bucketed(topic, ordering_key, buckets) if buckets else ordered(topic, ordering_key)
