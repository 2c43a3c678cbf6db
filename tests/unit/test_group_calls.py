"""Calls that declare and delete groups, on a meta database in memory: they return once all hosts follow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from foqs.contract import requests as of
from foqs.host.registry.group_calls import GroupCalls
from foqs.host.registry.namespace_calls import NamespaceCalls
from foqs.host.verbs.item_maker import costs_of
from foqs.model import limits
from foqs.model.census import NOTHING_HELD, CensusAnswer
from foqs.model.errors import InvalidArgumentError, TooLargeError, UnavailableError
from foqs.model.groups import GROUPS_PER_NAMESPACE_MAX, GroupBook, NamespaceGroups, TopicGroup, items_at_a_time
from foqs.model.namespace import Namespace, NamespaceSettings, SettingsTable
from foqs.testing.fake_meta import memory_meta

SHARD = 3


class TwoHosts:
    """A host that does calls, and another one, which reads the groups when it sees a census, and answers that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, other_held: bytes = NOTHING_HELD) -> None:
        """`other_held` is what the other host answers, b"" as hosts from before groups do."""
        monkeypatch.setattr(limits, "CENSUS_MS_MAX", -1)  # Ask once.
        self.meta = memory_meta(lambda: 1_000)
        self.tables: Any = self.meta.reach().tables
        self.tables.namespaces["ns"] = Namespace(1, "ns", NamespaceSettings(), 0)
        self.tables.epochs[SHARD] = 1
        self.other = SettingsTable()
        self.other_held = other_held
        namespaces: Any = SimpleNamespace(calls=self, refresh=self.refresh, require_durable=lambda: None)
        censuses: Any = SimpleNamespace(answered=self.nothing, check_healthy=lambda shard_ids: None)
        slots: Any = SimpleNamespace(kept=self.nothing, table=None)
        self.calls = GroupCalls(namespaces, NamespaceCalls(namespaces, censuses, slots, lambda: 0))

    async def run(self, work: Any) -> Any:
        return work(self.meta)

    async def nothing(self, *_: object) -> None:
        return None

    async def refresh(self) -> None:
        for census, _ in list(self.tables.censuses.values()):
            self.other.replace_groups(self.tables.groups)
            answer = CensusAnswer(SHARD, 1, 0, 0, 0, self.other_held)
            self.meta.censuses.answer(census, [answer])

    def copies_elsewhere(self) -> list[str]:
        groups = self.other.groups.get(1)
        found = groups.copies("t") if groups is not None else None
        return ["t"] if found is None else [one.name for one in found]


async def test_the_group_of_the_topic_gets_items_of_all_hosts_once_it_is_created_again(monkeypatch) -> None:
    hosts = TwoHosts(monkeypatch)
    await hosts.calls.create("ns", TopicGroup("t", "audit"))
    both = hosts.copies_elsewhere()
    await hosts.calls.delete("ns", "t", "")
    assert hosts.copies_elsewhere() == both[1:]
    for _ in range(2):
        assert (await hosts.calls.create("ns", TopicGroup("t", ""))).is_plain, "a lost answer can be asked for again"
        assert hosts.copies_elsewhere() == both
    assert [one.group for one in hosts.tables.groups[1].values()] == ["audit"], "it needs no row"


async def test_a_host_from_before_groups_does_not_confirm_their_changes(monkeypatch) -> None:
    hosts = TwoHosts(monkeypatch, b"")
    for call in (
        lambda: hosts.calls.create("ns", TopicGroup("t", "audit")),
        lambda: hosts.calls.delete("ns", "t", "audit"),
        lambda: hosts.calls.forget("ns", "t", "audit"),
    ):
        with pytest.raises(UnavailableError, match=rf"owner of shard {SHARD} has not answered.*host of this version"):
            await call()
    hosts.other_held = NOTHING_HELD
    assert await hosts.calls.forget("ns", "t", "audit")


async def test_a_group_that_was_created_and_deleted_again_meanwhile_is_not_forgotten(monkeypatch) -> None:
    hosts = TwoHosts(monkeypatch)
    old, new = (TopicGroup("t", "audit", created_at_ms=at_ms) for at_ms in (1, 2))
    await hosts.calls.create("ns", old)
    await hosts.calls.delete("ns", "t", "audit")
    stale = hosts.meta.groups.begin_forgetting("ns", "t", "audit")
    assert stale is not None
    await hosts.refresh()
    await hosts.calls.create("ns", new)
    await hosts.calls.delete("ns", "t", "audit")
    hosts.meta.groups.finish_forgetting(stale)
    assert [one.created_at_ms for one in hosts.tables.groups[1].values()] == [2]


def test_a_topic_without_another_group_keeps_its_own_and_the_limit_counts_each_that_was_deleted() -> None:
    audit = TopicGroup("t", "audit")
    for groups in ({}, {"audit": TopicGroup("t", "audit", is_deleted=True)}):
        with pytest.raises(InvalidArgumentError, match=r"topic 't' has no group but its own.*create another one first"):
            GroupBook(groups, 1).delete("t", "")
    with pytest.raises(InvalidArgumentError, match=f"the limit is {GROUPS_PER_NAMESPACE_MAX}"):
        GroupBook({"audit": audit}, GROUPS_PER_NAMESPACE_MAX).delete("t", "")
    own = GroupBook({"audit": audit}, GROUPS_PER_NAMESPACE_MAX - 1).delete("t", "")
    assert GroupBook({"": own}, GROUPS_PER_NAMESPACE_MAX).delete("t", "") == own, "a call can be repeated"
    assert GroupBook({"audit": audit}, GROUPS_PER_NAMESPACE_MAX).delete("t", "audit").is_deleted


def test_a_client_finds_in_an_error_how_many_items_at_a_time_have_few_enough_copies() -> None:
    groups = NamespaceGroups({one.hidden_name: one for one in [TopicGroup("t", f"g{at}") for at in range(4)]})
    with pytest.raises(TooLargeError) as found:
        costs_of([of.NewItem(topic="t", payload=b"")] * 1_000, groups)
    assert items_at_a_time(found.value) == 800
    with pytest.raises(TooLargeError) as found:
        costs_of([of.NewItem(topic="t", payload=bytes(limits.FRAME_BYTES_MAX // 8))] * 2, groups)
    assert items_at_a_time(found.value) == 0
    assert items_at_a_time(TooLargeError("a frame")) is None
