# Generated from foqs/client/aio/admin_items.py by scripts/generate_sync.py: edit that one.
"""Verbs of service FoqsAdmin for stored items, as methods of its client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta

from foqs.client import admin_verbs, queue_verbs
from foqs.client.sync.base import BaseClient
from foqs.model.calls import (
    DeadLettersResult,
    ExportPage,
    ExportPlan,
    ExportSplit,
    ItemState,
    PositionErrors,
    StoredItem,
    StoredItemPage,
)
from foqs.model.errors import UnavailableError


class ItemVerbs(BaseClient):
    """Verbs for stored items in any state, including dead letters. It is a part of `AdminClient`."""

    def peek_items(
        self,
        namespace: str,
        topic: str,
        limit: int = 100,
        page_token: str = "",
        *,
        group: str | None = None,
        ordering_key: str | None = None,
        fairness_key: str | None = None,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> StoredItemPage:
        """Return one page of a topic's ready and leased items, most urgent first. Nothing is leased.

        Items with a key follow those without one, those of one key after the other, and fairness keys before ordering
        keys.
        page_token: `next_page_token` of the previous page.  group: a consumer group of the topic; by default its own.
        ordering_key, or fairness_key: only the items with this key.
        """
        terms = self._within(deadline_ms, deadline)
        return self._run(
            admin_verbs.peek_items(terms, namespace, topic, limit, page_token, group, ordering_key, fairness_key)
        )

    def get_item(
        self, namespace: str, id: str, *, deadline_ms: int | None = None, deadline: timedelta | None = None
    ) -> StoredItem:
        """Return one item in any state. Raises NotFoundError."""
        return self._run(admin_verbs.get_item(self._within(deadline_ms, deadline), namespace, id))

    def plan_export(
        self,
        namespace: str,
        splits_per_shard: int = 1,
        *,
        partial: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> ExportPlan:
        """Return splits that together hold every item stored now, and no item that is enqueued later.

        splits_per_shard: up to 64, so that several readers share the work. A split stays valid indefinitely.
        partial: True to omit shards and hosts that do not respond, and to list them in `missing`; otherwise they raise
            UnavailableError.
        """
        terms = self._within(deadline_ms, deadline)
        return self._run(admin_verbs.plan_export(terms, namespace, splits_per_shard, partial))

    def export_items(
        self,
        namespace: str,
        split: ExportSplit,
        after_key: int = 0,
        limit: int = 1_000,
        *,
        topics: str | Iterable[str] = (),
        topic_prefix: str = "",
        states: Iterable[ItemState] = (),
        with_payload: bool = True,
        with_metadata: bool = True,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> ExportPage:
        """Return one page of a split, in the order of the items' keys. Nothing is changed or leased.

        after_key: `next_after_key` of the previous page.
        topics, states: only items of these topics (up to 500) and in these states; all if empty.
        topic_prefix: instead of topics, only topics with this prefix.
        with_payload, with_metadata: False to leave these empty.
        """
        terms = self._within(deadline_ms, deadline)
        flow = admin_verbs.export_items(
            terms, namespace, split, after_key, limit, topics, topic_prefix, states, with_payload, with_metadata
        )
        return self._run(flow)

    def iterate_items(
        self,
        namespace: str,
        *,
        topics: str | Iterable[str] = (),
        topic_prefix: str = "",
        states: Iterable[ItemState] = (),
        with_payload: bool = True,
        with_metadata: bool = True,
        page_size: int = 1_000,
        on_missing: Callable[[Sequence[str]], None] | None = None,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> Iterator[StoredItem]:
        """Iterate over all stored items, shard by shard, page by page; a deadline is each page's.

        An item that exists from the first page to the last is returned exactly once, in its state at the time of its
        page. Items that are enqueued after the start are not returned. The arguments are those of `export_items`.
        page_size: items of a page, up to 1,000.
        on_missing: called with descriptions of shards and hosts that do not respond and whose items are missing or
            incomplete. Without it such a shard raises UnavailableError.
        """
        topics = admin_verbs.topic_list(topics)
        states = admin_verbs.state_list(states)
        is_partial = on_missing is not None
        plan = self.plan_export(namespace, partial=is_partial, deadline_ms=deadline_ms, deadline=deadline)
        if plan.missing and on_missing is not None:
            on_missing(plan.missing)
        for split in plan.splits:
            after_key = 0
            while True:
                terms = self._within(deadline_ms, deadline)
                flow = admin_verbs.export_items(
                    terms,
                    namespace,
                    split,
                    after_key,
                    page_size,
                    topics,
                    topic_prefix,
                    states,
                    with_payload,
                    with_metadata,
                )
                try:
                    page = self._run(flow)
                except UnavailableError as error:
                    if on_missing is None:
                        raise
                    on_missing([f"shard {split.shard_id}: {error.message}"])
                    break
                yield from page.items
                after_key = page.next_after_key
                if not after_key:
                    break

    def delete_items(
        self,
        namespace: str,
        ids: str | Iterable[str],
        *,
        return_errors: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> PositionErrors:
        """Delete items in any state. A later ack of a leased one raises StaleLeaseError.

        ids: one, whose error is raised, or many: then BatchError has the errors by position.
        """
        terms = self._within(deadline_ms, deadline)
        return self._run(queue_verbs.delete(terms, namespace, ids, return_errors))

    def forget_dedup_ids(
        self,
        namespace: str,
        dedup_ids: str | Iterable[str],
        topic: str | None = None,
        *,
        ordering_key: str | None = None,
        return_errors: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> PositionErrors:
        """Make dedup ids free at once: the next enqueue with one of these stores an item. Stored items stay.

        dedup_ids: one, whose error is raised, or many: then BatchError has the errors by position. NotFoundError is the
        error of an id that was free already. topic: that of the ids, if it is serial or the namespace's dedup_scope is
        TOPIC.  ordering_key: that of their items, if these have one; then the topic is needed, too.
        """
        terms = self._within(deadline_ms, deadline)
        return self._run(queue_verbs.forget(terms, namespace, dedup_ids, topic, return_errors, ordering_key))

    def list_dead_letters(
        self,
        namespace: str,
        topic: str,
        limit: int = 100,
        page_token: str = "",
        *,
        group: str | None = None,
        ordering_key: str | None = None,
        fairness_key: str | None = None,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> StoredItemPage:
        """Return one page of a topic's dead letters, oldest first. The other arguments are as with `peek_items`."""
        terms = self._within(deadline_ms, deadline)
        return self._run(
            admin_verbs.list_dead_letters(terms, namespace, topic, limit, page_token, group, ordering_key, fairness_key)
        )

    def redrive_dead_letters(
        self,
        namespace: str,
        topic: str,
        ids: Iterable[str] | None = None,
        limit: int = 1_000,
        *,
        group: str | None = None,
        ordering_key: str | None = None,
        fairness_key: str | None = None,
        page_token: str = "",
        return_errors: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> DeadLettersResult:
        """Make dead letters ready again, with no attempts counted: the given ones, or up to `limit` of the oldest.

        group: a consumer group of the topic; by default its own dead letters.  ordering_key, or
            fairness_key: only items with this key.
        page_token: `next_page_token` of an earlier result, to continue behind it; as long as it is not empty, more dead
            letters might follow.
        Without ids, items that are delivered at most once are skipped, because they cannot be redriven. Raises
        BatchError if some of the given ids are not dead letters of the topic.
        """
        terms = self._within(deadline_ms, deadline)
        flow = admin_verbs.change_dead_letters(
            terms,
            "redriveDeadLetters",
            namespace,
            topic,
            ids,
            limit,
            page_token,
            return_errors,
            group,
            ordering_key,
            fairness_key,
        )
        return self._run(flow)

    def purge_dead_letters(
        self,
        namespace: str,
        topic: str,
        ids: Iterable[str] | None = None,
        limit: int = 1_000,
        *,
        group: str | None = None,
        ordering_key: str | None = None,
        fairness_key: str | None = None,
        page_token: str = "",
        return_errors: bool = False,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> DeadLettersResult:
        """Delete dead letters: the given ones, or up to `limit` of the oldest.

        group: a consumer group of the topic; by default its own dead letters.  ordering_key, or
            fairness_key: only items with this key.
        page_token: `next_page_token` of an earlier result, to continue behind it.
        Raises BatchError if some of the given ids are not dead letters of the topic.
        """
        terms = self._within(deadline_ms, deadline)
        flow = admin_verbs.change_dead_letters(
            terms,
            "purgeDeadLetters",
            namespace,
            topic,
            ids,
            limit,
            page_token,
            return_errors,
            group,
            ordering_key,
            fairness_key,
        )
        return self._run(flow)
