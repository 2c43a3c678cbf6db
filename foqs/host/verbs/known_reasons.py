"""The reasons why topics deliver nothing, as far as this host knows them without asking other hosts."""

from __future__ import annotations

from collections.abc import Callable

from foqs.host.dispatch.dispatcher import Dispatcher
from foqs.host.dispatch.tokens import SLOT_MS
from foqs.host.registry.namespaces import Namespaces
from foqs.model.calls import TopicStats
from foqs.model.reasons import Facts, TopicFacts
from foqs.model.topic_name import parts


class KnownReasons:
    """Implements foqs.cluster.routing.why_empty.LocalReasons. It only reads."""

    def __init__(
        self,
        namespaces: Namespaces,
        dispatcher: Dispatcher,
        now_s: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        """`now_s` is the clock of the dispatcher."""
        self._namespaces = namespaces
        self._dispatcher = dispatcher
        self._now_s = now_s
        self._wall_ms = wall_ms

    def facts(self, namespace_name: str) -> Facts:
        namespace = self._namespaces.serving(namespace_name)
        settings = namespace.settings
        return Facts(
            namespace.name,
            is_paused=settings.dequeue_paused,
            pause_reason=settings.pause_reason,
            cap=self._dispatcher.settings.caps.get(namespace.number, 0.0),
        )

    def of_topic(self, namespace_name: str, topic: str, stats: TopicStats | None) -> TopicFacts:
        number = self._namespaces.serving(namespace_name).number
        policy = self._dispatcher.settings.policy(number, topic)
        name, group = parts(topic)
        found = TopicFacts(
            name, stats, policy.dequeue_paused, policy.reason, policy.deliveries_per_second_max, group=group
        )
        queue = self._dispatcher.queues.by_topic.get((number, topic))
        if queue is not None:
            # Read from the wheel, because an ask of the cap itself would bring tokens to this host.
            slot = queue.token_wait_slot or queue.tenant.token_wait_slot
            if slot > 0:
                found.cap_until_ms = self._wall_ms() + max(0, round(slot * SLOT_MS - self._now_s() * 1000))
            found.lacks_room = queue.lacks_room()
        return found
