"""A host tells the meta database of epochs that it has lost, and only of those."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from foqs.host.registry.known_slots import Slots
from foqs.host.registry.namespaces import Namespaces, OwnedShards
from foqs.model.slots import NO_SLOTS
from foqs.storage.meta.meta_namespaces import MetaNamespaces, NamespaceList
from foqs.storage.meta.meta_shards import MetaShards
from foqs.storage.meta.meta_store import MetaStore


class Host:
    """Owns shards under these epochs, and reads a meta database that has those."""

    def __init__(self) -> None:
        self.owned: dict[int, int] = {}
        self.in_meta: dict[int, int] = {}
        self.on_read: Callable[[], object] = lambda: None
        self.meta = Mock(spec=MetaStore, namespaces=Mock(spec=MetaNamespaces), shards=Mock(spec=MetaShards))
        self.meta.namespaces.read.side_effect = self._read
        shards = Mock(spec=OwnedShards)
        shards.conflicts.return_value = {}
        shards.epochs.side_effect = lambda: dict(self.owned)
        slots = Mock(spec=Slots, table=NO_SLOTS, version_max=0)
        self.namespaces = Namespaces(self.meta, "host", lambda: 0, shards, slots, allow_undurable=True)

    def _read(self) -> NamespaceList:
        listed = NamespaceList([], [], dict(self.in_meta), NO_SLOTS, None, {}, {}, {})
        self.on_read()
        return listed

    @property
    def told(self) -> Mapping[int, int]:
        """The epochs that the meta database was told of."""
        return {
            shard: epoch
            for call in self.meta.shards.raise_epochs.call_args_list
            for shard, epoch in call.args[1].items()
        }


@pytest.fixture
def host() -> Host:
    return Host()


@contextmanager
def went_back() -> Iterator[list[object]]:
    found: list[object] = []
    with capture_logs() as logs:
        yield found
    found += [log for log in logs if log["event"] == "meta_went_back"]


async def test_a_meta_database_that_was_restored_is_told_the_epochs_it_lacks(host: Host) -> None:
    host.owned, host.in_meta = {0: 3, 1: 7}, {0: 3, 1: 5}
    with went_back() as alarms:
        await host.namespaces.refresh()
    assert alarms
    assert host.told == {1: 7}


async def test_a_shard_that_is_opened_during_a_reading_is_no_sign_of_a_restored_database(host: Host) -> None:
    host.owned, host.in_meta = {0: 3}, {0: 3, 1: 6}
    host.on_read = lambda: host.owned.update({1: 7})
    with went_back() as alarms:
        await host.namespaces.refresh()
    assert not alarms
    assert not host.told
