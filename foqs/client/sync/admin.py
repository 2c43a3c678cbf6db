# Generated from foqs/client/aio/admin.py by scripts/generate_sync.py: edit that one.
"""The client of service FoqsAdmin. Verbs are defined in `foqs.client.admin_verbs`; here they get names and types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from foqs.client import admin_verbs
from foqs.client.sync.base import BaseClient
from foqs.model.calls import DeadLettersResult, HostStatus, PositionErrors, StoredItem, StoredItemPage
from foqs.model.namespace import Namespace


class AdminClient(BaseClient):
    """A blocking client of service FoqsAdmin, safe for threads. Its arguments and errors are those of `Client`."""

    def create_namespace(self, name: str, **settings: Any) -> Namespace:
        """Create a namespace; the settings are the fields of NamespaceSettings."""
        return self._run(admin_verbs.create_namespace(self._terms, name, settings))

    def update_namespace(self, name: str, **settings: Any) -> Namespace:
        """Change the given settings, leave the others."""
        return self._run(admin_verbs.update_namespace(self._terms, name, settings))

    def get_namespace(self, name: str) -> Namespace:
        """The namespace (its `number` is 0: it does not travel)."""
        return self._run(admin_verbs.get_namespace(self._terms, name))

    def list_namespaces(self, prefix: str = "") -> Iterator[Namespace]:
        """Every namespace whose name starts so, page by page."""
        token = ""
        while True:
            page = self._run(admin_verbs.namespace_page(self._terms, prefix, token))
            yield from page.namespaces
            token = page.next_page_token
            if not token:
                return

    def delete_namespace(self, name: str) -> None:
        """Delete an empty namespace."""
        self._run(admin_verbs.delete_namespace(self._terms, name))

    def recover_namespace(self, number: int, name: str | None = None) -> Namespace:
        """Bring back a namespace whose items shards hold and the meta database has lost, by the number in the log.

        With its old name, or `name`, and default settings. Raises NotFoundError when no shard of this host knows it.
        """
        return self._run(admin_verbs.recover_namespace(self._terms, number, name))

    def peek_items(self, namespace: str, topic: str, limit: int = 100, page_token: str = "") -> StoredItemPage:
        """One page of a topic's ready items, most urgent first. Leases nothing."""
        return self._run(admin_verbs.peek_items(self._terms, namespace, topic, limit, page_token))

    def get_item(self, namespace: str, id: str) -> StoredItem:
        """One item in whatever state."""
        return self._run(admin_verbs.get_item(self._terms, namespace, id))

    def delete_items(self, namespace: str, ids: str | Iterable[str]) -> PositionErrors:
        """Delete items in whatever state; errors by position."""
        return self._run(admin_verbs.delete_items(self._terms, namespace, ids))

    def list_dead_letters(self, namespace: str, topic: str, limit: int = 100, page_token: str = "") -> StoredItemPage:
        """One page of a topic's dead letters, oldest first."""
        return self._run(admin_verbs.list_dead_letters(self._terms, namespace, topic, limit, page_token))

    def redrive_dead_letters(
        self, namespace: str, topic: str, ids: Iterable[str] | None = None, limit: int = 1_000
    ) -> DeadLettersResult:
        """Make dead letters ready again: the given ones, or up to `limit` of the oldest."""
        return self._run(admin_verbs.redrive_dead_letters(self._terms, namespace, topic, ids, limit))

    def purge_dead_letters(
        self, namespace: str, topic: str, ids: Iterable[str] | None = None, limit: int = 1_000
    ) -> DeadLettersResult:
        """Delete dead letters: the given ones, or up to `limit` of the oldest."""
        return self._run(admin_verbs.purge_dead_letters(self._terms, namespace, topic, ids, limit))

    def host_status(self) -> HostStatus:
        """The host that answers, and its shards."""
        return self._run(admin_verbs.host_status(self._terms))
