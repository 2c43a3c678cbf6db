"""Conflicts between what shards and the meta database call a namespace: found at once, and looked for only then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from foqs.host.registry.censuses import Censuses
from foqs.host.registry.namespaces import NamespaceView
from foqs.model.namespace import Namespace, NamespaceSettings


class Names(dict[int, str]):
    """The names that a shard knows, which counts how often it was walked."""

    walks_count = 0

    def copy(self) -> dict[int, str]:
        self.walks_count += 1
        return super().copy()


def view(*names: str) -> NamespaceView:
    return NamespaceView([Namespace(at, name, NamespaceSettings(), 0) for at, name in enumerate(names, 1)])


class OneHost:
    def __init__(self, *names: str) -> None:
        self.names = Names(enumerate(names, 1))
        index = SimpleNamespace(namespace_names=self.names, namespaces={}, counted=True)
        self.owned: list[Any] = [(None, SimpleNamespace(shard_id=3, index=index))]
        shards = cast(Any, SimpleNamespace(owned=lambda: self.owned))
        self.censuses = Censuses(shards, cast(Any, None), cast(Any, None))

    def conflicts(self, seen: NamespaceView) -> set[str]:
        return set(self.censuses.conflicts(seen))


def test_names_are_compared_again_only_when_there_are_others() -> None:
    """A host does so twice a second, with up to 20,000 names of each of its shards."""
    host, same = OneHost("a", "b"), view("a", "other", "c")
    assert host.conflicts(same) == host.conflicts(same) == {"other"}
    assert host.names.walks_count == 1
    host.names[3] = "d"
    assert host.conflicts(same) == {"other", "c"}
    assert host.conflicts(view("a", "b", "d")) == set()
    assert host.names.walks_count == 3


def test_a_shard_that_was_opened_anew_is_compared_anew() -> None:
    host, same = OneHost("a"), view("b")
    assert host.conflicts(same) == {"b"}
    host.owned = OneHost("b").owned
    assert host.conflicts(same) == set()
    host.owned = []
    assert host.conflicts(same) == set()
