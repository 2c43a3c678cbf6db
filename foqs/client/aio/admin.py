"""The client of service FoqsAdmin. Verbs are defined in `foqs.client.admin_verbs`; here they get names and types."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from foqs.client import admin_verbs
from foqs.client.aio.base import AsyncBaseClient
from foqs.model.calls import DeadLettersResult, HostStatus, PositionErrors, StoredItem, StoredItemPage
from foqs.model.namespace import Namespace


class AsyncAdminClient(AsyncBaseClient):
    """A client of service FoqsAdmin for one event loop. Its arguments and errors are those of `AsyncClient`."""

    async def create_namespace(self, name: str, **settings: Any) -> Namespace:
        """Create a namespace; the settings are the fields of NamespaceSettings."""
        return await self._run(admin_verbs.create_namespace(self._terms, name, settings))

    async def update_namespace(self, name: str, **settings: Any) -> Namespace:
        """Change the given settings, leave the others."""
        return await self._run(admin_verbs.update_namespace(self._terms, name, settings))

    async def get_namespace(self, name: str) -> Namespace:
        """The namespace (its `number` is 0: it does not travel)."""
        return await self._run(admin_verbs.get_namespace(self._terms, name))

    async def list_namespaces(self, prefix: str = "") -> AsyncIterator[Namespace]:
        """Every namespace whose name starts so, page by page."""
        token = ""
        while True:
            page = await self._run(admin_verbs.namespace_page(self._terms, prefix, token))
            for namespace in page.namespaces:
                yield namespace
            token = page.next_page_token
            if not token:
                return

    async def delete_namespace(self, name: str) -> None:
        """Delete an empty namespace."""
        await self._run(admin_verbs.delete_namespace(self._terms, name))

    async def recover_namespace(self, number: int, name: str | None = None) -> Namespace:
        """Bring back a namespace whose items shards hold and the meta database has lost, by the number in the log.

        With its old name, or `name`, and default settings. Raises NotFoundError when no shard of this host knows it.
        """
        return await self._run(admin_verbs.recover_namespace(self._terms, number, name))

    async def peek_items(self, namespace: str, topic: str, limit: int = 100, page_token: str = "") -> StoredItemPage:
        """One page of a topic's ready items, most urgent first. Leases nothing."""
        return await self._run(admin_verbs.peek_items(self._terms, namespace, topic, limit, page_token))

    async def get_item(self, namespace: str, id: str) -> StoredItem:
        """One item in whatever state."""
        return await self._run(admin_verbs.get_item(self._terms, namespace, id))

    async def delete_items(self, namespace: str, ids: str | Iterable[str]) -> PositionErrors:
        """Delete items in whatever state; errors by position."""
        return await self._run(admin_verbs.delete_items(self._terms, namespace, ids))

    async def list_dead_letters(
        self, namespace: str, topic: str, limit: int = 100, page_token: str = ""
    ) -> StoredItemPage:
        """One page of a topic's dead letters, oldest first."""
        return await self._run(admin_verbs.list_dead_letters(self._terms, namespace, topic, limit, page_token))

    async def redrive_dead_letters(
        self, namespace: str, topic: str, ids: Iterable[str] | None = None, limit: int = 1_000
    ) -> DeadLettersResult:
        """Make dead letters ready again: the given ones, or up to `limit` of the oldest."""
        return await self._run(admin_verbs.redrive_dead_letters(self._terms, namespace, topic, ids, limit))

    async def purge_dead_letters(
        self, namespace: str, topic: str, ids: Iterable[str] | None = None, limit: int = 1_000
    ) -> DeadLettersResult:
        """Delete dead letters: the given ones, or up to `limit` of the oldest."""
        return await self._run(admin_verbs.purge_dead_letters(self._terms, namespace, topic, ids, limit))

    async def host_status(self) -> HostStatus:
        """The host that answers, and its shards."""
        return await self._run(admin_verbs.host_status(self._terms))
