"""Policies of topics in the meta database: what is read of them, their bounds, and how hosts follow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import event

from foqs.model import limits
from foqs.model.errors import InvalidArgumentError, PausedError, UnknownNamespaceError
from foqs.model.namespace import NamespaceSettings
from foqs.model.policy import TopicPolicy
from foqs.storage.meta import MetaStore
from tests.support.running_host import running_host
from tests.support.waiting import until

pytestmark = pytest.mark.database


@pytest.fixture
def store(meta_url: str) -> Iterator[MetaStore]:
    with closing(MetaStore(meta_url)) as meta:
        yield meta


def changes(**given: Any) -> SimpleNamespace:
    return SimpleNamespace(**given)


def test_a_policy_comes_back_as_it_was_set_and_one_of_defaults_has_no_row(store: MetaStore) -> None:
    number = store.insert_namespace("n", NamespaceSettings(), 0).number
    policy = store.set_topic_policy("n", "ä", changes(weight=7, deliveries_per_second_max=0.125, reason="wegen ü"))
    assert policy == TopicPolicy(weight=7, deliveries_per_second_max=0.125, reason="wegen ü")
    assert store.read_namespaces().policies == {number: {"ä": policy}}
    store.set_topic_policy("n", "ä", changes(dequeue_paused=True))
    (entry,) = store.page_topic_policies(number, "", "", 10)
    assert (entry.topic, entry.weight, entry.dequeue_paused) == ("ä", 7, True)
    assert store.page_topic_policies(number, "b", "", 10) == []
    assert store.page_topic_policies(number, "", "ä", 10) == []
    default = changes(weight=1, deliveries_per_second_max=0.0, reason="", dequeue_paused=False)
    assert store.set_topic_policy("n", "ä", default) == TopicPolicy()
    assert store.read_namespaces().policies == {}
    with pytest.raises(UnknownNamespaceError):
        store.set_topic_policy("other", "a", changes(weight=2))
    with pytest.raises(InvalidArgumentError):
        store.set_topic_policy("n", "a", changes(weight=limits.TOPIC_WEIGHT_MAX + 1))


def test_a_reader_reads_what_has_changed_and_nothing_else(store: MetaStore, meta_url: str) -> None:
    a, b = (store.insert_namespace(name, NamespaceSettings(), 0).number for name in ("a", "b"))
    for name in ("a", "b"):
        for at in range(400):
            store.set_topic_policy(name, f"t{at}", changes(weight=2))
    with closing(MetaStore(meta_url)) as reader:
        statements: list[str] = []
        event.listen(reader._engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
        first = reader.read_namespaces().policies
        assert {number: len(some) for number, some in first.items()} == {a: 400, b: 400}
        statements.clear()
        assert reader.read_namespaces().policies is first
        assert not [statement for statement in statements if "topic_policy" in statement]
        store.set_topic_policy("a", "t7", changes(weight=3))
        store.set_topic_policy("a", "new", changes(weight=4))
        store.set_topic_policy("a", "t8", changes(weight=1))
        second = reader.read_namespaces().policies
        assert second[b] is first[b]
        assert second[a]["t7"].weight == 3
        assert second[a]["new"].weight == 4
        assert "t8" not in second[a]
        assert sum(second[a].get(topic) is not policy for topic, policy in first[a].items()) == 2
        assert second[a].keys() ^ first[a].keys() == {"new", "t8"}


def test_policies_of_a_deleted_namespace_go_with_it(store: MetaStore) -> None:
    number = store.insert_namespace("n", NamespaceSettings(), 0).number
    store.set_topic_policy("n", "t", changes(weight=2))
    assert store.finish_deletion(store.begin_deletion("n"), "n") == []
    assert store.page_topic_policies(number, "", "", 10) == []
    assert store.read_namespaces().policies == {}


@pytest.mark.parametrize("bound", ["TOPIC_POLICIES_PER_NAMESPACE_MAX", "TOPIC_POLICIES_MAX"])
def test_policies_are_bounded(store: MetaStore, bound: str) -> None:
    store.insert_namespace("n", NamespaceSettings(), 0)
    with patch.object(limits, bound, 2):
        for topic in ("a", "b"):
            store.set_topic_policy("n", topic, changes(weight=2))
        with pytest.raises(InvalidArgumentError, match="limit is 2"):
            store.set_topic_policy("n", "c", changes(weight=2))
        store.set_topic_policy("n", "a", changes(weight=3))
        store.set_topic_policy("n", "a", changes(weight=1))
        store.set_topic_policy("n", "c", changes(weight=2))


async def test_another_host_follows_a_change_also_for_calls_that_wait(
    meta_url: str, shard_urls: dict[int, str], store: MetaStore
) -> None:
    async with running_host(meta_url, {0: shard_urls[0]}, namespace="n") as host:
        waiting = asyncio.create_task(host.client.dequeue("n", "t", wait_ms=20_000))
        anyone = asyncio.create_task(host.client.dequeue("n", topic_prefix="u", wait_ms=20_000))
        await until(lambda: host.host._dispatcher.waiting_count == 2)
        await asyncio.to_thread(store.set_topic_policy, "n", "t", changes(dequeue_paused=True, reason="elsewhere"))
        with pytest.raises(PausedError, match="elsewhere"):
            await waiting
        await asyncio.to_thread(store.set_topic_policy, "n", "u1", changes(dequeue_paused=True))
        await until(lambda: host.host._namespaces.settings.policy(1, "u1").dequeue_paused)
        await host.client.enqueue("n", "u1", b"x")
        await asyncio.to_thread(store.set_topic_policy, "n", "u1", changes(dequeue_paused=False))
        assert [item.payload for item in await anyone] == [b"x"]
