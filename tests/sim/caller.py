"""How a simulated client calls a host, and what it writes into the history of it."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foqs.client.client_errors import NotSentError
from foqs.model import limits
from foqs.model.calls import PositionErrors, StoredItemPage
from foqs.model.errors import FoqsError, NotFoundError, StaleLeaseError
from tests.histories.history import Call, Outcome, Settled, Verb, uid_of
from tests.histories.recorder import outcome_of
from tests.sim.host import FakeDoor, SimHost

if TYPE_CHECKING:
    from tests.sim.world import World

NAMESPACE = "sim"
"""Most of the load."""

Work = Callable[[FakeDoor, str], Awaitable[Any]]
"""A call of a host in a namespace."""


@dataclass(slots=True)
class Demand:
    topic: str
    count: int
    group: str | None = None


@dataclass(slots=True)
class Held:
    """A lease as its holder knows it; `doubtful` once something unanswered may have ended or shortened it."""

    receipt: str
    uid: str
    namespace: str
    topic: str
    until_ms: int
    at_most_once: bool
    doubtful: bool = False


class SimCaller:
    """A client without verbs: it may give up, and it notes what it asked and what came of it."""

    def __init__(self, world: World, name: str, chance: random.Random) -> None:
        self.name = name
        self._world = world
        self._chance = chance
        self.namespace = NAMESPACE
        """That its next call is in."""
        self._held: list[Held] = []

    def _take_held(self, count: int) -> list[Held]:
        self._chance.shuffle(self._held)
        taken = [held for held in self._held if held.namespace == self.namespace][:count]
        self._held = [held for held in self._held if held not in taken]
        return taken

    def _check_own(self, page: StoredItemPage | None) -> None:
        label = self._world.label_of(self.namespace)
        for item in page.items if page is not None else ():
            uid = uid_of(item.payload)
            if not uid.startswith(f"{label}:"):
                self._world.complain(f"P10: {uid} is shown in namespace {self.namespace}")

    async def _settle(self, verb: Verb, held: Sequence[Held], settled: Sequence[Settled], work: Work) -> Call:
        call = self._begin(verb, settled)
        host = self._world.pick_host(self._chance)
        try:
            errors: PositionErrors = await self._call(work, host)
        except FoqsError as error:
            self._end(call, outcome_of(error), repr(error))
            return call
        for position, refusal in errors.items():
            if isinstance(refusal, StaleLeaseError):
                self._world.refused(self, host, held[position], call.invoked_at_ms)
        self._end(call, Outcome.OK, errors=errors)
        return call

    async def _end_by_id(
        self, work: Callable[[FakeDoor, str, list[str]], Awaitable[PositionErrors]], ids: list[str] | None = None
    ) -> None:
        if ids is None:
            item_id = self._world.some_id(self._chance, self.namespace)
            ids = [item_id] if item_id is not None else []
        if not ids:
            return
        self._world.ids_ended.update(ids)
        call = self._begin(Verb.ACK, [Settled(item_id) for item_id in ids])
        try:
            errors: PositionErrors = await self._watch_row(ids, lambda door, namespace: work(door, namespace, ids))
        except FoqsError as error:
            self._end(call, outcome_of(error), repr(error))
            return
        self._end(call, Outcome.OK, errors=errors)

    async def _watch_row(self, ids: list[str], work: Work) -> Any:
        """A row that is there before and after the call was there all the time: NOT_FOUND would be a lie."""
        there = [self._world.has_row(item_id) for item_id in ids]
        host = self._world.pick_host(self._chance)
        try:
            answer = await self._call(work, host)
        except NotFoundError as error:
            self._world.not_found(host, ids[0], error, there[0])
            raise
        if isinstance(answer, dict):
            for position, refusal in answer.items():
                if isinstance(refusal, NotFoundError):
                    self._world.not_found(host, ids[position], refusal, there[position])
        return answer

    async def _quietly(self, work: Work) -> Any:
        """None when the call fails, which it may at any time."""
        try:
            return await self._call(work)
        except FoqsError as error:
            self._world.trace(self.name, f"look failed: {error!r}")
            return None

    async def _call(self, work: Work, host: SimHost | None = None) -> Any:
        chance, profile = self._chance, self._world.profile
        impatient = not self._world.delays.calm and chance.random() < profile.cancel_share
        patience_s = chance.random() * 0.1 if impatient else limits.CALL_MS_MAX / 1000 + 2
        host = host or self._world.pick_host(chance)
        if host is None:
            await asyncio.sleep(0.05)
            raise NotSentError("no host listens")
        namespace = self.namespace  # One that was given up may run while its client is in another one.
        return await self._world.call(host, lambda door: work(door, namespace), patience_s)

    def _begin(self, verb: Verb, asked: Sequence[Any]) -> Call:
        world = self._world
        call = Call(self.name, len(world.calls), verb, asked, math.floor(world.exact_now_ms()))
        world.calls.append(call)
        world.trace(self.name, f"{verb} {_short(asked)}")
        return call

    def _end(self, call: Call, outcome: Outcome, why: str = "", errors: PositionErrors | None = None) -> None:
        world = self._world
        call.outcome, call.returned_at_ms = outcome, math.ceil(world.exact_now_ms())
        call.others = {position: outcome_of(error) for position, error in (errors or {}).items()}
        if world.verbose:
            shown = why or " ".join([*call.ids, *[f"{taken.receipt}={taken.uid}" for taken in call.taken]])
            failed = {position: repr(error) for position, error in (errors or {}).items()}
            world.trace(self.name, f"{call.verb} of {call.invoked_at_ms}: {outcome} {shown} {failed or ''}")


def _short(asked: Sequence[Any]) -> str:
    return " ".join([str(tuple(one)) if isinstance(one, tuple) else str(one) for one in asked])
