"""The network between hosts: each direction of each pair may be cut or slow by itself."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

_LOOK_S = 0.01


class Links:
    """Cuts and delays by sender and receiver, which are ids of hosts."""

    def __init__(self, chance: random.Random, now_s: Callable[[], float], counts: Counter[str]) -> None:
        self._chance = chance
        self._now_s = now_s
        self._counts = counts
        self._cut: dict[tuple[str, str], float] = {}
        """Until when."""
        self._slow: dict[tuple[str, str], tuple[float, float]] = {}
        """How slow at most, and until when."""

    def cut(self, sender: str, receiver: str, for_s: float) -> None:
        self._cut[sender, receiver] = self._now_s() + for_s
        self._counts["links of hosts that were cut in one direction"] += 1

    def slow(self, sender: str, receiver: str, delay_s: float, for_s: float) -> None:
        self._slow[sender, receiver] = delay_s, self._now_s() + for_s
        self._counts["links of hosts that were slow"] += 1

    def heal(self) -> None:
        self._cut.clear()
        self._slow.clear()

    def is_cut(self, sender: str, receiver: str) -> bool:
        return self._cut.get((sender, receiver), 0.0) > self._now_s()

    def is_refused(self, sender: str, receiver: str) -> bool:
        """Whether there is no connection and none can be made; one that was made before may still be there."""
        is_cut = self.is_cut(sender, receiver) or self.is_cut(receiver, sender)
        return is_cut and self._chance.random() < 0.5

    async def passed(self, sender: str, receiver: str) -> None:
        """Return when a message has come through: what is sent on a connection arrives once the link is whole."""
        while self.is_cut(sender, receiver):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        delay_s, until_s = self._slow.get((sender, receiver), (0.0, 0.0))
        if until_s > self._now_s():
            await asyncio.sleep(self._chance.random() * delay_s)
