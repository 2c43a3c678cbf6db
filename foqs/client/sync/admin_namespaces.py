# Generated from foqs/client/aio/admin_namespaces.py by scripts/generate_sync.py: edit that one.
"""The verbs of the client of service FoqsAdmin for namespaces and for the policies of their topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta

from foqs.client import admin_verbs, policy_verbs
from foqs.client.sync.base import BaseClient
from foqs.model.calls import PositionErrors
from foqs.model.namespace import DedupScope, DedupWhenAway, Namespace
from foqs.model.policy import TopicPolicyChange, TopicPolicyEntry


class NamespaceVerbs(BaseClient):
    """Namespaces, and the policies of topics. It is a part of `AdminClient`."""

    def create_namespace(
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
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> Namespace:
        """Create a namespace. A setting that is not given gets the service's default, see NamespaceSettings.

        Raises AlreadyExistsError when there is one of that name, InvalidArgumentError for a setting out of its bounds.
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
        return self._run(admin_verbs.create_namespace(self._within(deadline_ms, deadline), name, settings))

    def update_namespace(
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
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> Namespace:
        """Change the given settings of a namespace, leave the others.

        Raises UnknownNamespaceError, and InvalidArgumentError for a setting out of its bounds and for another
        key_spread or dedup_scope than the namespace was created with.
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
        return self._run(admin_verbs.update_namespace(self._within(deadline_ms, deadline), name, settings))

    def get_namespace(
        self, name: str, *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> Namespace:
        """Return the namespace (its `number` is 0: it is not sent). Raises UnknownNamespaceError."""
        return self._run(admin_verbs.get_namespace(self._within(deadline_ms, deadline), name))

    def list_namespaces(
        self, prefix: str = "", *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> Iterator[Namespace]:
        """Iterate over the namespaces whose names start with the prefix, page by page; a deadline is each page's."""
        token = ""
        while True:
            page = self._run(admin_verbs.namespace_page(self._within(deadline_ms, deadline), prefix, token))
            yield from page.namespaces
            token = page.next_page_token
            if not token:
                return

    def delete_namespace(self, name: str, *, deadline_ms: int | None = None, deadline: timedelta | None = None) -> None:
        """Delete an empty namespace; refused while it holds items."""
        self._run(admin_verbs.delete_namespace(self._within(deadline_ms, deadline), name))

    def recover_namespace(
        self,
        number: int,
        name: str | None = None,
        *,
        key_spread: int | None = None,
        dedup_scope: DedupScope | None = None,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> Namespace:
        """Bring back a namespace whose items shards hold and the meta database has lost, by the number in the log.

        It gets its old name, or `name`, and default settings. key_spread and dedup_scope have to be what they were:
        else the dedup ids that its shards hold are not known again. Raises NotFoundError when no shard of this host
        knows it.
        """
        terms = self._within(deadline_ms, deadline)
        return self._run(admin_verbs.recover_namespace(terms, number, name, key_spread, dedup_scope))

    def set_topic_policy(
        self,
        namespace: str,
        topic: str,
        *,
        enqueue_paused: bool | None = None,
        dequeue_paused: bool | None = None,
        reason: str | None = None,
        deliveries_per_second_max: float | None = None,
        weight: int | None = None,
        is_prefix: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> TopicPolicyEntry:
        """Change what is given in the policy of a topic, and return what holds then. Every host follows within 2 s.

        reason: why it is paused; who enqueues or dequeues is told.
        deliveries_per_second_max: the cap of the topic, 0 for none.
        weight: 1 (default) to 100, its share of dequeues with topic_prefix.
        is_prefix: True for the policy of all topics that begin with `topic`, of each by itself. Of several prefixes of
            a topic the longest holds, as a whole; what is set for the topic itself overrides it, field by field.
        """
        changes = {
            "enqueue_paused": enqueue_paused,
            "dequeue_paused": dequeue_paused,
            "reason": reason,
            "deliveries_per_second_max": deliveries_per_second_max,
            "weight": weight,
        }
        terms = self._within(deadline_ms, deadline)
        return self._run(policy_verbs.set_topic_policy(terms, namespace, topic, changes, is_prefix))

    def set_topic_policies(
        self,
        namespace: str,
        changes: Iterable[TopicPolicyChange],
        *,
        return_errors: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> PositionErrors:
        """Make many changes of policies in the order given, in calls of up to 1,000, each of one transaction.

        One that cannot be made does not cost the others: BatchError has the errors by position, and so has the result
        with `return_errors`.
        """
        terms = self._within(deadline_ms, deadline)
        return self._run(policy_verbs.set_topic_policies(terms, namespace, changes, return_errors))

    def get_topic_policy(
        self,
        namespace: str,
        topic: str,
        *,
        is_prefix: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> TopicPolicyEntry:
        """Return the policy that holds for a topic, or that of a prefix: the defaults where nobody has set one."""
        terms = self._within(deadline_ms, deadline)
        return self._run(policy_verbs.get_topic_policy(terms, namespace, topic, is_prefix))

    def list_topic_policies(
        self, namespace: str, prefix: str = "", *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> Iterator[TopicPolicyEntry]:
        """Iterate over the policies of prefixes and then of topics, by name; a deadline is each page's.

        prefix: only those of prefixes and topics that start so.
        """
        token = ""
        while True:
            terms = self._within(deadline_ms, deadline)
            page = self._run(policy_verbs.topic_policy_page(terms, namespace, prefix, token))
            yield from page.policies
            token = page.next_page_token
            if not token:
                return
