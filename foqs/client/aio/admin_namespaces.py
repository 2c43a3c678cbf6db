"""Verbs of service FoqsAdmin for namespaces and topic policies, as methods of its client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import timedelta

from foqs.client import admin_verbs, policy_verbs
from foqs.client.aio.base import AsyncBaseClient
from foqs.client.durations import duration_ms
from foqs.client.policy_change import TopicPolicyChange
from foqs.model.calls import PositionErrors
from foqs.model.namespace import DedupScope, DedupWhenAway, Namespace
from foqs.model.policy import TopicPolicyEntry, TriState
from foqs.model.serial import OnDead


class AsyncNamespaceVerbs(AsyncBaseClient):
    """Verbs for namespaces and topic policies. It is a part of `AsyncAdminClient`."""

    async def create_namespace(
        self,
        name: str,
        *,
        enqueues_per_minute_max: int | None = None,
        payload_bytes_max: int | None = None,
        metadata_bytes_max: int | None = None,
        batch_items_max: int | None = None,
        lease_ms_default: int | None = None,
        lease_default: timedelta | None = None,
        lease_ms_max: int | None = None,
        lease_max: timedelta | None = None,
        delay_ms_max: int | None = None,
        delay_max: timedelta | None = None,
        ttl_ms_default: int | None = None,
        ttl_default: timedelta | None = None,
        ttl_ms_max: int | None = None,
        ttl_max: timedelta | None = None,
        attempts_max: int | None = None,
        enqueue_paused: bool | None = None,
        dequeue_paused: bool | None = None,
        dedup_ms: int | None = None,
        dedup: timedelta | None = None,
        dedup_ids: int | None = None,
        dedup_scope: DedupScope | None = None,
        key_spread: int | None = None,
        dedup_when_away: DedupWhenAway | None = None,
        events_per_mille: int | None = None,
        deliveries_per_second_max: float | None = None,
        pause_reason: str | None = None,
        tier: str | None = None,
        dead_letter_on_expiry: bool | None = None,
        errors_bytes_max: int | None = None,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> Namespace:
        """Create a namespace. Omitted settings get the service's defaults, see NamespaceSettings.

        Raises AlreadyExistsError if the name is taken, InvalidArgumentError for a setting out of its bounds.
        """
        settings = admin_verbs.settings_of(
            {
                "enqueues_per_minute_max": enqueues_per_minute_max,
                "payload_bytes_max": payload_bytes_max,
                "metadata_bytes_max": metadata_bytes_max,
                "batch_items_max": batch_items_max,
                "attempts_max": attempts_max,
                "enqueue_paused": enqueue_paused,
                "dequeue_paused": dequeue_paused,
                "dedup_ids": dedup_ids,
                "dedup_scope": dedup_scope,
                "key_spread": key_spread,
                "dedup_when_away": dedup_when_away,
                "events_per_mille": events_per_mille,
                "deliveries_per_second_max": deliveries_per_second_max,
                "pause_reason": pause_reason,
                "tier": tier,
                "dead_letter_on_expiry": dead_letter_on_expiry,
                "errors_bytes_max": errors_bytes_max,
            },
            {
                "lease_ms_default": (lease_ms_default, lease_default),
                "lease_ms_max": (lease_ms_max, lease_max),
                "delay_ms_max": (delay_ms_max, delay_max),
                "ttl_ms_default": (ttl_ms_default, ttl_default),
                "ttl_ms_max": (ttl_ms_max, ttl_max),
                "dedup_ms": (dedup_ms, dedup),
            },
        )
        return await self._run(admin_verbs.create_namespace(self._within(deadline_ms, deadline), name, settings))

    async def update_namespace(
        self,
        name: str,
        *,
        enqueues_per_minute_max: int | None = None,
        payload_bytes_max: int | None = None,
        metadata_bytes_max: int | None = None,
        batch_items_max: int | None = None,
        lease_ms_default: int | None = None,
        lease_default: timedelta | None = None,
        lease_ms_max: int | None = None,
        lease_max: timedelta | None = None,
        delay_ms_max: int | None = None,
        delay_max: timedelta | None = None,
        ttl_ms_default: int | None = None,
        ttl_default: timedelta | None = None,
        ttl_ms_max: int | None = None,
        ttl_max: timedelta | None = None,
        attempts_max: int | None = None,
        enqueue_paused: bool | None = None,
        dequeue_paused: bool | None = None,
        dedup_ms: int | None = None,
        dedup: timedelta | None = None,
        dedup_ids: int | None = None,
        dedup_scope: DedupScope | None = None,
        key_spread: int | None = None,
        dedup_when_away: DedupWhenAway | None = None,
        events_per_mille: int | None = None,
        deliveries_per_second_max: float | None = None,
        pause_reason: str | None = None,
        tier: str | None = None,
        dead_letter_on_expiry: bool | None = None,
        errors_bytes_max: int | None = None,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> Namespace:
        """Change the given settings of a namespace.

        Raises UnknownNamespaceError, and InvalidArgumentError for a setting out of its bounds and for a key_spread or
        dedup_scope other than at the creation.
        """
        settings = admin_verbs.settings_of(
            {
                "enqueues_per_minute_max": enqueues_per_minute_max,
                "payload_bytes_max": payload_bytes_max,
                "metadata_bytes_max": metadata_bytes_max,
                "batch_items_max": batch_items_max,
                "attempts_max": attempts_max,
                "enqueue_paused": enqueue_paused,
                "dequeue_paused": dequeue_paused,
                "dedup_ids": dedup_ids,
                "dedup_scope": dedup_scope,
                "key_spread": key_spread,
                "dedup_when_away": dedup_when_away,
                "events_per_mille": events_per_mille,
                "deliveries_per_second_max": deliveries_per_second_max,
                "pause_reason": pause_reason,
                "tier": tier,
                "dead_letter_on_expiry": dead_letter_on_expiry,
                "errors_bytes_max": errors_bytes_max,
            },
            {
                "lease_ms_default": (lease_ms_default, lease_default),
                "lease_ms_max": (lease_ms_max, lease_max),
                "delay_ms_max": (delay_ms_max, delay_max),
                "ttl_ms_default": (ttl_ms_default, ttl_default),
                "ttl_ms_max": (ttl_ms_max, ttl_max),
                "dedup_ms": (dedup_ms, dedup),
            },
        )
        return await self._run(admin_verbs.update_namespace(self._within(deadline_ms, deadline), name, settings))

    async def get_namespace(
        self, name: str, *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> Namespace:
        """Return the namespace (its `number` is not sent and is 0). Raises UnknownNamespaceError."""
        return await self._run(admin_verbs.get_namespace(self._within(deadline_ms, deadline), name))

    async def list_namespaces(
        self, prefix: str = "", *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> AsyncIterator[Namespace]:
        """Iterate over the namespaces whose names start with the prefix, page by page; a deadline is each page's."""
        token = ""
        while True:
            page = await self._run(admin_verbs.namespace_page(self._within(deadline_ms, deadline), prefix, token))
            for namespace in page.namespaces:
                yield namespace
            token = page.next_page_token
            if not token:
                return

    async def delete_namespace(
        self, name: str, *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> None:
        """Delete an empty namespace; refused while it holds items."""
        await self._run(admin_verbs.delete_namespace(self._within(deadline_ms, deadline), name))

    async def recover_namespace(
        self,
        number: int,
        name: str | None = None,
        *,
        key_spread: int | None = None,
        dedup_scope: DedupScope | None = None,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> Namespace:
        """Restore a namespace that the meta database lost and shards still have items of, by its number in the log.

        It gets its old name, or `name`, and default settings. key_spread and dedup_scope must have their old values,
        because otherwise the dedup ids on its shards are not recognized. Raises NotFoundError if no shard of this host
        knows the namespace.
        """
        terms = self._within(deadline_ms, deadline)
        return await self._run(admin_verbs.recover_namespace(terms, number, name, key_spread, dedup_scope))

    async def set_topic_policy(
        self,
        namespace: str,
        topic: str,
        *,
        enqueue_paused: bool | None = None,
        dequeue_paused: bool | None = None,
        reason: str | None = None,
        deliveries_per_second_max: float | None = None,
        weight: int | None = None,
        attempts_max: int | None = None,
        depth_max: int | None = None,
        dead_letter_on_expiry: TriState | bool | None = None,
        backoff_ms: int | None = None,
        backoff: timedelta | None = None,
        backoff_ms_max: int | None = None,
        backoff_max: timedelta | None = None,
        serial: bool | None = None,
        on_dead: OnDead | None = None,
        in_flight_max: int | None = None,
        key_buckets: int | None = None,
        key_batch: int | None = None,
        aging_ms_per_priority: int | None = None,
        aging_per_priority: timedelta | None = None,
        is_prefix: bool = False,
        group: str | None = None,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> TopicPolicyEntry:
        """Change the given fields of a topic's policy, and return the new policy. Every host applies it within 2 s.

        reason: why the topic is paused; shown to callers that enqueue or dequeue.
        deliveries_per_second_max: the cap of the topic, 0 for no cap.
        weight: 1 (default) to 100, its share of dequeues with topic_prefix.
        attempts_max: the failed attempts after which an item becomes a dead letter, up to 1,000; 0 (default) for those
            of the namespace.
        depth_max: the ready, delayed and leased items in the cluster from which on enqueues of the topic get
            PausedError, up to 1,000,000,000; 0 (default) for no limit. Hosts that enqueue at the same time can
            exceed it by the items of about a second.
        dead_letter_on_expiry: True if an item that expires and never failed becomes a dead letter, False if it is
            deleted, TriState.UNSET (default) for the setting of the namespace.
        backoff or backoff_ms: the delay of an item after its first failed attempt, which is a nack without a delay or a
            lost lease; it doubles with each further one. Up to 90 days; 0 (default) for none.
        backoff_max or backoff_ms_max: the longest such delay, up to 90 days; 0 (default) for 90 days.
        serial: True to deliver one item at a time, in the order of priority and commit. The topic, or all topics of the
            prefix, must hold no items, which all shards are asked; else InvalidArgumentError. False applies at once.
        on_dead: OnDead.HOLD to hold a serial topic while it has a dead letter; OnDead.CONTINUE (default) to deliver the
            next item.
        in_flight_max: the most items under lease at the same time on all hosts together, up to 1,000,000; 0 (default)
            for no limit. A lower limit ends no lease.
        key_buckets: the sequences that the ordering keys of the topic share, up to 4,096; 0 (default) for one for each
            key. The topic must hold no items, as for `serial`.
        key_batch: the most items of an ordering key, or of the serial topic, that one dequeue gets together, up to
            1,000; 0 (default) for one. The next ones follow when all of these have ended.
        aging_per_priority or aging_ms_per_priority: the wait in which an item becomes more urgent by one priority, up
            to a day; 0 (default) for strict priorities. Not for a topic that is serial or has `key_buckets`, and its
            items have no keys. Items that wait already keep their places.
        is_prefix: True for the policy of all topics that begin with `topic`, each on its own. The longest prefix of a
            topic applies, as a whole; the topic's own policy overrides it, field by field.
        group: the policy of this consumer group of the topic: its pause of dequeues, its cap, its weight.
        """
        changes = {
            "enqueue_paused": enqueue_paused,
            "dequeue_paused": dequeue_paused,
            "reason": reason,
            "deliveries_per_second_max": deliveries_per_second_max,
            "weight": weight,
            "attempts_max": attempts_max,
            "depth_max": depth_max,
            "dead_letter_on_expiry": dead_letter_on_expiry,
            "backoff_ms": duration_ms("backoff_ms", backoff_ms, backoff),
            "backoff_ms_max": duration_ms("backoff_ms_max", backoff_ms_max, backoff_max),
            "serial": serial,
            "on_dead": on_dead,
            "in_flight_max": in_flight_max,
            "key_buckets": key_buckets,
            "key_batch": key_batch,
            "aging_ms_per_priority": duration_ms("aging_ms_per_priority", aging_ms_per_priority, aging_per_priority),
        }
        terms = self._within(deadline_ms, deadline)
        return await self._run(policy_verbs.set_topic_policy(terms, namespace, topic, changes, is_prefix, group))

    async def set_topic_policies(
        self,
        namespace: str,
        changes: Iterable[TopicPolicyChange],
        *,
        return_errors: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> PositionErrors:
        """Make many policy changes in the given order, in calls of up to 1,000, with one transaction each.

        A change that fails does not affect the others. BatchError has the errors by position, or with `return_errors`
        the result.
        """
        terms = self._within(deadline_ms, deadline)
        return await self._run(policy_verbs.set_topic_policies(terms, namespace, changes, return_errors))

    async def get_topic_policy(
        self,
        namespace: str,
        topic: str,
        *,
        is_prefix: bool = False,
        group: str | None = None,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> TopicPolicyEntry:
        """Return the effective policy of a topic, of one of its groups, or of a prefix.

        Unset policies have the defaults.
        """
        terms = self._within(deadline_ms, deadline)
        return await self._run(policy_verbs.get_topic_policy(terms, namespace, topic, is_prefix, group))

    async def list_topic_policies(
        self, namespace: str, prefix: str = "", *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> AsyncIterator[TopicPolicyEntry]:
        """Iterate over the policies of prefixes and then of topics, by name; a deadline is each page's.

        prefix: only prefixes and topics that start with it.
        """
        token = ""
        while True:
            terms = self._within(deadline_ms, deadline)
            page = await self._run(policy_verbs.topic_policy_page(terms, namespace, prefix, token))
            for policy in page.policies:
                yield policy
            token = page.next_page_token
            if not token:
                return
