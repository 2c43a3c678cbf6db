"""The verbs of access on a meta database in memory, without a host."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

from foqs.host.access.refused_calls import Refusals
from foqs.host.verbs.access_verbs import AccessVerbs
from foqs.testing.fake_meta import FakeMeta, memory_meta

NOW_MS = 1_700_000_000_000


class _MetaAlone:
    """The parts of a host that the verbs call: its namespaces, and the follower of access."""

    def __init__(self, meta: FakeMeta) -> None:
        self._meta = meta
        self.access_calls = self

    async def run(self, work: Callable[[Any], Any]) -> Any:
        return work(self._meta)

    def require_durable(self) -> None:
        return None

    async def refresh(self) -> None:
        return None


class FakeAccessCalls(AccessVerbs):
    """Time stands still at NOW_MS."""

    def __init__(self) -> None:
        self.refused = Refusals()
        meta = cast(Any, _MetaAlone(memory_meta(lambda: NOW_MS)))
        AccessVerbs.__init__(self, meta, meta, self.refused, random.Random(0).randbytes, lambda: NOW_MS)
