"""Policies of topics in the meta database: what is read of them, their bounds, and how hosts follow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from click.testing import CliRunner
from sqlalchemy import event

from foqs.cli.main import cli
from foqs.model import limits
from foqs.model.errors import FoqsError, InvalidArgumentError, PausedError, UnknownNamespaceError
from foqs.model.namespace import NamespaceSettings
from foqs.model.policy import OwnPolicy, TopicPolicyEntry
from foqs.model.policy_book import NamedChange
from foqs.storage.meta.meta_store import MetaStore
from tests.support.running_host import running_host
from tests.support.waiting import until

pytestmark = pytest.mark.database


@pytest.fixture
def store(meta_url: str) -> Iterator[MetaStore]:
    with closing(MetaStore(meta_url)) as meta:
        yield meta


def set_policy(
    store: MetaStore, namespace: str, name: str, is_prefix: bool = False, **changes: Any
) -> TopicPolicyEntry:
    (told,) = store.policies.set(namespace, [NamedChange(name, is_prefix, SimpleNamespace(**changes))])
    if isinstance(told, FoqsError):
        raise told
    return told


def page(store: MetaStore, number: int, prefix: str = "", after: tuple[bool, str] = (True, "")) -> list[str]:
    """Prefixes with a star."""
    found = store.policies.page(number, prefix, after, 10, with_prefixes=True)
    return [one.topic + "*" * one.is_prefix for one in found]


def test_a_policy_comes_back_as_it_was_set_and_one_of_defaults_has_no_row(store: MetaStore) -> None:
    number = store.namespaces.insert("n", NamespaceSettings(), 0).number
    policy = set_policy(store, "n", "ä", weight=7, deliveries_per_second_max=0.125, reason="wegen ü")
    own = OwnPolicy(weight=7, deliveries_per_second_max=0.125, reason="wegen ü")
    assert policy == TopicPolicyEntry.of("ä", own, own, is_prefix=False)
    assert store.namespaces.read().policies == {number: {"ä": own}}
    set_policy(store, "n", "ä", dequeue_paused=True)
    (entry,) = store.policies.page(number, "", (True, ""), 10, with_prefixes=True)
    assert (entry.topic, entry.weight, entry.dequeue_paused) == ("ä", 7, True)
    assert page(store, number, "b") == []
    assert page(store, number, "", (False, "ä")) == []
    back = set_policy(store, "n", "ä", weight=1, deliveries_per_second_max=0.0, reason="", dequeue_paused=False)
    assert back == TopicPolicyEntry(topic="ä")
    assert store.namespaces.read().policies == {}
    with pytest.raises(UnknownNamespaceError):
        set_policy(store, "other", "a", weight=2)
    with pytest.raises(InvalidArgumentError):
        set_policy(store, "n", "a", weight=limits.TOPIC_WEIGHT_MAX + 1)


def test_a_batch_is_one_transaction_and_a_bad_member_fails_alone(store: MetaStore, meta_url: str) -> None:
    number = store.namespaces.insert("n", NamespaceSettings(), 0).number
    commits: list[Any] = []
    event.listen(store._sessions._engine, "commit", commits.append)
    work = [NamedChange(f"t{at}", False, SimpleNamespace(weight=2 + at % 200)) for at in range(limits.BATCH_ITEMS_MAX)]
    before = version_of(store)
    commits.clear()
    told = store.policies.set("n", work)
    assert len(commits) == 1
    wrong = {at for at, one in enumerate(told) if isinstance(one, InvalidArgumentError)}
    assert wrong == {at for at in range(limits.BATCH_ITEMS_MAX) if 2 + at % 200 > limits.TOPIC_WEIGHT_MAX}
    assert version_of(store) != before
    read = store.namespaces.read().policies[number]
    assert {name: own.weight for name, own in read.items()} == {
        f"t{at}": 2 + at % 200 for at in range(limits.BATCH_ITEMS_MAX) if at not in wrong
    }
    same = version_of(store)
    store.policies.set("n", [NamedChange("t0", False, SimpleNamespace(weight=2))])
    assert version_of(store) == same, "nothing has changed, and no host reads anything"


def version_of(store: MetaStore) -> int:
    (namespace,) = store.namespaces.read().namespaces
    return namespace.policies_version


def test_members_of_a_batch_see_those_before_them(store: MetaStore) -> None:
    number = store.namespaces.insert("n", NamespaceSettings(), 0).number
    with patch.object(limits, "TOPIC_POLICIES_PER_NAMESPACE_MAX", 1):
        told = store.policies.set(
            "n",
            [NamedChange("a", False, SimpleNamespace(weight=2)), NamedChange("b", False, SimpleNamespace(weight=2)),
             NamedChange("a", False, SimpleNamespace(weight=1)), NamedChange("c", False, SimpleNamespace(weight=3)),
             NamedChange("c", False, SimpleNamespace(reason="why"))],
        )  # fmt: skip
    assert [type(one) for one in told] == [
        TopicPolicyEntry, InvalidArgumentError, TopicPolicyEntry, TopicPolicyEntry, TopicPolicyEntry,
    ]  # fmt: skip
    assert store.namespaces.read().policies == {number: {"c": OwnPolicy(weight=3, reason="why")}}


def test_prefixes_are_a_table_of_their_own_and_come_before_topics(store: MetaStore) -> None:
    number = store.namespaces.insert("n", NamespaceSettings(), 0).number
    for name, is_prefix in (("a", True), ("a", False), ("a*", False), ("b", True), ("b*", True)):
        set_policy(store, "n", name, is_prefix, weight=2 if is_prefix else 3)
    listed = store.namespaces.read()
    assert (sorted(listed.policies[number]), sorted(listed.prefix_policies[number])) == (["a", "a*"], ["a", "b", "b*"])
    assert page(store, number) == ["a*", "b*", "b**", "a", "a*"]
    assert page(store, number, "a") == ["a*", "a", "a*"]
    assert page(store, number, "", (True, "a")) == ["b*", "b**", "a", "a*"]
    assert page(store, number, "", (False, "a")) == ["a*"]
    old = store.policies.page(number, "", (True, ""), 10, with_prefixes=False)
    assert [one.topic for one in old] == ["a", "a*"], "who does not know prefixes gets none"
    again = store.namespaces.read()
    assert again.prefix_policies is listed.prefix_policies
    set_policy(store, "n", "b", True, weight=1)
    after = store.namespaces.read()
    assert sorted(after.prefix_policies[number]) == ["a", "b*"]
    assert after.policies[number] is listed.policies[number], "topics are not read again for a prefix"


def test_what_is_set_for_a_topic_itself_comes_back_also_where_it_is_the_default(store: MetaStore) -> None:
    number = store.namespaces.insert("n", NamespaceSettings(), 0).number
    set_policy(store, "n", "a", True, dequeue_paused=True, reason="move", weight=4)
    told = set_policy(store, "n", "a/1", dequeue_paused=False)
    assert (told.dequeue_paused, told.reason, told.weight) == (False, "move", 4)
    assert told.own_fields == ("dequeue_paused",)
    assert store.namespaces.read().policies[number]["a/1"].own_fields == ("dequeue_paused",)
    _, listed = store.policies.page(number, "", (True, ""), 10, with_prefixes=True)
    assert listed == told
    set_policy(store, "n", "a/1", dequeue_paused=True)
    assert store.namespaces.read().policies == {}, "what it has anyway is not set"


def test_a_reader_reads_what_has_changed_and_nothing_else(store: MetaStore, meta_url: str) -> None:
    a, b = (store.namespaces.insert(name, NamespaceSettings(), 0).number for name in ("a", "b"))
    for name in ("a", "b"):
        told = store.policies.set(name, [NamedChange(f"t{at}", False, SimpleNamespace(weight=2)) for at in range(400)])
        assert len(told) == 400
    with closing(MetaStore(meta_url)) as reader:
        statements: list[str] = []
        event.listen(reader._sessions._engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
        first = reader.namespaces.read().policies
        assert {number: len(some) for number, some in first.items()} == {a: 400, b: 400}
        statements.clear()
        assert reader.namespaces.read().policies is first
        assert not [statement for statement in statements if "topic_policy" in statement]
        set_policy(store, "a", "t7", weight=3)
        set_policy(store, "a", "new", weight=4)
        set_policy(store, "a", "t8", weight=1)
        second = reader.namespaces.read().policies
        assert second[b] is first[b]
        assert second[a]["t7"].weight == 3
        assert second[a]["new"].weight == 4
        assert "t8" not in second[a]
        assert sum(second[a].get(topic) is not policy for topic, policy in first[a].items()) == 2
        assert second[a].keys() ^ first[a].keys() == {"new", "t8"}


def test_policies_of_a_deleted_namespace_go_with_it(store: MetaStore) -> None:
    number = store.namespaces.insert("n", NamespaceSettings(), 0).number
    set_policy(store, "n", "t", weight=2)
    set_policy(store, "n", "t", True, weight=2)
    assert store.namespaces.finish_deletion(store.namespaces.begin_deletion("n"), "n") == []
    assert page(store, number) == []
    listed = store.namespaces.read()
    assert (listed.policies, listed.prefix_policies) == ({}, {})


@pytest.mark.parametrize(
    ("bound", "is_prefix"),
    [
        ("TOPIC_POLICIES_PER_NAMESPACE_MAX", False),
        ("TOPIC_POLICIES_MAX", False),
        ("TOPIC_PREFIX_POLICIES_MAX", True),
        ("TOPIC_POLICIES_MAX", True),
    ],
)
def test_policies_are_bounded(store: MetaStore, bound: str, is_prefix: bool) -> None:
    store.namespaces.insert("n", NamespaceSettings(), 0)
    with patch.object(limits, bound, 2):
        for topic in ("a", "b"):
            set_policy(store, "n", topic, is_prefix, weight=2)
        with pytest.raises(InvalidArgumentError, match="limit is 2"):
            set_policy(store, "n", "c", is_prefix, weight=2)
        set_policy(store, "n", "a", is_prefix, weight=3)
        set_policy(store, "n", "a", is_prefix, weight=1)
        set_policy(store, "n", "c", is_prefix, weight=2)


async def test_another_host_follows_a_change_also_for_calls_that_wait(
    meta_url: str, shard_urls: dict[int, str], store: MetaStore
) -> None:
    async with running_host(meta_url, {0: shard_urls[0]}, namespace="n") as host:
        waiting = asyncio.create_task(host.client.dequeue("n", "t", wait_ms=20_000))
        anyone = asyncio.create_task(host.client.dequeue("n", topic_prefix="u", wait_ms=20_000))
        await until(lambda: host.host._dispatcher.queues.waiting_count == 2)
        await asyncio.to_thread(set_policy, store, "n", "t", dequeue_paused=True, reason="elsewhere")
        with pytest.raises(PausedError, match="elsewhere"):
            await waiting
        await asyncio.to_thread(set_policy, store, "n", "u1", dequeue_paused=True)
        await until(lambda: host.host._namespaces.settings.policy(1, "u1").dequeue_paused)
        await host.client.enqueue("n", "u1", b"x")
        await asyncio.to_thread(set_policy, store, "n", "u1", dequeue_paused=False)
        assert [item.payload for item in await anyone] == [b"x"]


async def test_another_host_follows_a_prefix_also_for_calls_that_wait(
    meta_url: str, shard_urls: dict[int, str], store: MetaStore
) -> None:
    async with running_host(meta_url, {0: shard_urls[0]}, namespace="n") as host:
        waiting = asyncio.create_task(host.client.dequeue("n", "p/t", wait_ms=20_000))
        other = asyncio.create_task(host.client.dequeue("n", "q", wait_ms=20_000))
        await until(lambda: host.host._dispatcher.queues.waiting_count == 2)
        await asyncio.to_thread(set_policy, store, "n", "p/", True, dequeue_paused=True, reason="elsewhere")
        with pytest.raises(PausedError, match="elsewhere"):
            await waiting
        with pytest.raises(PausedError, match="elsewhere"):
            await host.client.dequeue("n", "p/never seen")
        await asyncio.to_thread(set_policy, store, "n", "p/", True, dequeue_paused=False)
        await until(lambda: not host.host._namespaces.settings.policy(1, "p/t").dequeue_paused)
        for topic in ("p/t", "q"):
            await host.client.enqueue("n", topic, b"x")
        assert [item.payload for item in await other] == [b"x"]
        assert [item.payload for item in await host.client.dequeue("n", "p/t", wait_ms=20_000)] == [b"x"]


async def test_thousands_of_policies_from_a_file_take_a_transaction_for_each_thousand(
    meta_url: str, shard_urls: dict[int, str], tmp_path: Path
) -> None:
    path = tmp_path / "policies.csv"
    path.write_text("topic,items_per_second\n" + "".join([f"t{at},{1 + at % 50}\n" for at in range(3_000)]))
    async with running_host(meta_url, {0: shard_urls[0]}, namespace="n") as host:
        statements: list[str] = []
        engine = host.host._namespaces._meta._sessions._engine
        event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
        command = ["topic", "set-policies", "n", str(path), "--address", host.address]
        result = await asyncio.to_thread(CliRunner().invoke, cli, command, prog_name="foqs")
        assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "3000 policies set")
        assert sum("SET policies_version" in one for one in statements) == 3
        settings = host.host._namespaces.settings
        assert [settings.policy(1, f"t{at}").deliveries_per_second_max for at in (0, 49, 2_999)] == [1, 50, 50]
        statements.clear()
        result = await asyncio.to_thread(CliRunner().invoke, cli, command, prog_name="foqs")
        assert result.exit_code == 0
        assert not [one for one in statements if "SET policies_version" in one], "it may be run again for nothing"
