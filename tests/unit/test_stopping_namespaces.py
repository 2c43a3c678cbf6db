"""A host that stops while the meta database hangs keeps its event loop turning."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

from foqs.host.registry.known_slots import Slots
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import Shards
from foqs.model.census import Census
from foqs.model.slots import NO_SLOTS
from foqs.storage.meta.meta_namespaces import NamespaceList
from tests.support.waiting import PATIENCE_S, until


class HangingMeta:
    """`hang` makes the next reading wait for `answers`; `gave_up` when that came too late."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.namespaces = self
        self.hang = self.is_asked = self.gave_up = False

    def read(self) -> NamespaceList:
        if self.hang:
            self.is_asked = True
            self.gave_up = not self.answers.wait(PATIENCE_S)
        return NamespaceList([], [], {}, NO_SLOTS, None, {}, {}, {})

    def close(self) -> None:
        return None


class NoShards:
    def conflicts(self, view: object) -> dict[str, Any]:
        return {}

    def servers(self) -> dict[int, str]:
        return {}

    def epochs(self) -> dict[int, int]:
        return {}

    def answer(self, censuses: list[Census], namespaces: Namespaces) -> None:
        return None


async def test_what_waits_for_the_meta_database_does_not_hold_the_event_loop_when_it_stops() -> None:
    meta = HangingMeta()
    slots = Slots(Shards())
    namespaces = Namespaces(cast(Any, meta), "host", lambda: 0, cast(Any, NoShards()), slots, allow_undurable=True)
    await namespaces.start()
    meta.hang = True
    refresh = asyncio.create_task(namespaces.refresh())
    call = asyncio.create_task(namespaces.calls.run(lambda meta: meta.namespaces.read()))
    await until(lambda: meta.is_asked)
    stopping = asyncio.create_task(namespaces.stop())
    for _ in range(5):
        await asyncio.sleep(0)
    meta.answers.set()
    await stopping
    await asyncio.gather(refresh, call)
    assert not meta.gave_up
