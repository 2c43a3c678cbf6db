"""No answer of a host shows the hidden name of a group or of an ordering key, whatever verb is asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from foqs import Nack, NewItem
from foqs.contract.verbs import VERBS, Whole
from loadtest.fuzz import corpus
from tests.support.running_host import RunningHost

pytestmark = pytest.mark.asyncio(loop_scope="module")

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ENDS_SOMETHING = ("deleteNamespace", "updateNamespace", "endWait", "deleteItems", "purgeDeadLetters", "deleteGroup")
"""Verbs that leave nothing to show, which come last."""
_WITHOUT_ANSWER = ("endWait", "authenticate")


def texts_in(value: Any) -> Iterator[str]:
    """Every text in a struct and in what it holds."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from texts_in(key)
            yield from texts_in(one)
    elif isinstance(value, list | tuple | set):
        for one in value:
            yield from texts_in(one)
    elif value is not None and hasattr(value, "__dict__"):
        yield from texts_in(vars(value))


async def fill(host: RunningHost, namespace: str) -> None:
    """Items in all states, with and without a key, of a topic and of a group."""
    await host.admin.create_namespace(namespace)
    await host.admin.create_group(namespace, "topic", "audit")
    items = [NewItem("topic", b"x", ordering_key=key) for key in (None, "k", "k", "other", "third") for _ in range(2)]
    items += [NewItem("topic", b"x", fairness_key=key) for key in ("k", "other") for _ in range(2)]
    await host.client.enqueue_many(namespace, items)
    for group in (None, "audit"):
        leased = await host.client.dequeue(namespace, "topic", 4, group=group, wait_ms=5_000)
        by_key = [item for item in leased if item.ordering_key is not None]
        await host.client.nack(
            namespace, [Nack(by_key[0].receipt, dead_letter=True), Nack(by_key[1].receipt, delay_ms=60_000)]
        )


async def test_no_verb_shows_a_hidden_name(host: RunningHost) -> None:
    await fill(host, corpus.NAMESPACE)
    calls = [*corpus._plain(), *corpus._full()]
    calls.sort(key=lambda call: call[0] in _ENDS_SOMETHING)
    shown: dict[str, int] = {}
    for name, request in calls:
        if VERBS[name].route is Whole.OF_PEERS or name in _WITHOUT_ANSWER:
            continue
        for group in {None, "audit"} if hasattr(request, "group") else {None}:
            if group is not None:
                request.group = group
            reply = await host.call(name, request)
            texts = list(texts_in(reply))
            found = [text for text in texts if _CONTROL.search(text.replace("\n", ""))]
            assert not found, f"{name} shows {found[0]!r}"
            shown[name] = shown.get(name, 0) + sum("topic" in text for text in texts)
    of_items = ("getActiveTopics", "peekItems", "listDeadLetters", "dequeue", "listTopicPolicies", "listGroups")
    assert all(shown[name] for name in of_items), shown
