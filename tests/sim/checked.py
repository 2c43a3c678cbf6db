"""The shard's state and the dispatcher of simulated hosts, checked after what they do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from foqs.host.dispatch.dispatcher import Dispatcher
from foqs.host.dispatch.topic_queue import DequeueCall
from foqs.model.clock import Now
from foqs.model.item import ShardItem, singles
from foqs.model.namespace import SettingsTable
from foqs.model.shared_caps import SharedCap
from foqs.model.topic import ShardTopic
from foqs.shard.port import ShardImage, Transaction, TransactionResult
from foqs.shard.state.engine import ShardState
from foqs.shard.state.events import Demand, Events
from tests.sim.caps import CapCheck
from tests.support.dispatcher_invariants import problems_of_ended_calls
from tests.support.invariants import claim_problems, order_problems, state_problems

if TYPE_CHECKING:
    from tests.sim.world import World


def checked_state(world_of: Callable[[], World], every: int) -> type[ShardState]:
    """The shard's state, checked after every `every`-th transaction."""

    class CheckedState(ShardState):
        ended_count = 0

        def __init__(
            self, shard_id: int, image: ShardImage, settings: SettingsTable, unseen: Collection[int] = ()
        ) -> None:
            super().__init__(shard_id, image, settings, unseen)
            world_of().taken_over(self)

        def take(self, now: Now, demand: Mapping[ShardTopic, Demand], *, probe: bool = False) -> Transaction | None:
            transaction = super().take(now, demand, probe=probe)
            if transaction is not None:
                world_of().clocks.taken(self, transaction)
                if world_of().profile.has_wrong_hints:
                    transaction.inserts_short_lived += transaction.inserts
                    transaction.inserts = []
            return transaction

        def committed(self, result: TransactionResult, now: Now) -> Events:
            transaction = self.in_flight
            assert transaction is not None
            events = super().committed(result, now)
            world_of().events.known(self.shard_id, transaction.number)
            for problem in claim_problems(transaction):
                world_of().complain(f"shard {self.shard_id}: {problem}")
            self._check()
            return events

        def failed(self, reason: str) -> Events:
            events = super().failed(reason)
            self._check()
            return events

        def _check(self) -> None:
            self.ended_count += 1
            world = world_of()
            tables = world.servers[self.shard_id].tables
            if self.ended_count % every == 0 and tables.writer.epoch == self.epoch:
                for problem in state_problems(self, world.packs_of(self.shard_id, self.epoch), tables):
                    world.complain(f"shard {self.shard_id}: {problem}")

    return CheckedState


def checked_dispatcher(world_of: Callable[[], World]) -> Callable[..., Dispatcher]:
    """The dispatcher, checked at every answer."""

    def make(
        writers: Any, clock: Any, settings: SettingsTable, record: Any, on_changed: Any, new_cap: Any
    ) -> Dispatcher:
        observer = _AnswerCheck(world_of, settings)
        observer.dispatcher = Dispatcher(writers, clock, settings, record, on_changed, new_cap, observer)
        return observer.dispatcher

    return make


class _AnswerCheck:
    """Observes the dispatcher of one host."""

    dispatcher: Dispatcher

    def __init__(self, world_of: Callable[[], World], settings: SettingsTable) -> None:
        self._world_of = world_of
        self._cap_check = CapCheck(settings)
        self._passed: Container[ShardTopic] = ()
        """Topics that had no room for more claims when an answer was put together: they hold nobody up."""

    def settings_followed(self) -> None:
        self._cap_check.look()

    def delivering(self, call: DequeueCall) -> None:
        parts = chain.from_iterable(queue.parts.values() for queue in call.wants)
        self._passed = {part for part in parts if not part.room}

    def answering(self, call: DequeueCall, items: list[ShardItem]) -> None:
        world = self._world_of()
        items = [one for item in items for one in singles(item)]
        for problem in order_problems(self.dispatcher, items, world.tables, self._passed):
            world.complain(problem)
        for problem in chain(
            self._cap_check.delivered(items, world.loop.time(), is_shared=self._shares_caps()),
            world.cap_check.delivered(items),
            world.in_flight.delivered(items),
        ):
            world.complain(problem)
        world.clocks.handed_out(call, items)

    def answered(self, call: DequeueCall, items: list[ShardItem]) -> None:
        for queue in call.wants:
            for problem in problems_of_ended_calls(self.dispatcher, queue):
                self._world_of().complain(problem)

    def _shares_caps(self) -> bool:
        """Whether there were ever other hosts: then those together have the burst of a cap."""
        caps = self.dispatcher.tokens.caps.values()
        return any(isinstance(cap, SharedCap) and cap._homes.version for cap in caps)
