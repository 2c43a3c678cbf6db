"""The namespaces as this host knows them: read from the meta database, served from memory when it is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog

from foqs.core import limits
from foqs.core.errors import FoqsError, UnknownNamespaceError, shown
from foqs.core.namespace import Namespace
from foqs.core.service import Service
from foqs.storage.meta import MetaStore

_log = structlog.get_logger(__name__)
T = TypeVar("T")


class Namespaces(Service):
    """Refreshes every limits.HEARTBEAT_MS."""

    def __init__(self, meta: MetaStore) -> None:
        super().__init__("namespaces")
        self._meta = meta
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="meta")
        self._by_name: dict[str, Namespace] = {}
        self._by_number: dict[int, Namespace] = {}
        self._task: asyncio.Task[None] | None = None

    def get(self, name: str) -> Namespace:
        """Raises UnknownNamespaceError."""
        namespace = self._by_name.get(name)
        if namespace is None:
            raise UnknownNamespaceError(f"namespace {shown(name)} does not exist: create it first")
        return namespace

    def attempts_max(self, number: int) -> int:
        namespace = self._by_number.get(number)
        return namespace.settings.attempts_max if namespace else limits.ATTEMPTS_DEFAULT

    def item_bytes_max(self, number: int) -> int:
        namespace = self._by_number.get(number)
        if namespace is None:
            return limits.PAYLOAD_BYTES_MAX + limits.METADATA_BYTES_MAX
        return namespace.settings.payload_bytes_max + namespace.settings.metadata_bytes_max

    def name_of(self, number: int) -> str | None:
        namespace = self._by_number.get(number)
        return namespace.name if namespace else None

    @property
    def numbers(self) -> set[int]:
        return set(self._by_number)

    async def on_meta(self, work: Callable[[MetaStore], T]) -> T:
        """Run one piece of work on the meta database in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._meta)

    async def refresh(self) -> None:
        namespaces = await self.on_meta(lambda meta: meta.list_namespaces())
        self._by_name = {namespace.name: namespace for namespace in namespaces}
        self._by_number = {namespace.number: namespace for namespace in namespaces}

    async def _start(self) -> None:
        await self.refresh()
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=True)
        self._meta.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(limits.HEARTBEAT_MS / 1000)
            try:
                await self.refresh()
            except FoqsError as error:
                _log.warning("meta_away", error=str(error))
            except Exception:  # A defect must not end the refreshes for good.
                _log.error("host_defect", work="refresh of namespaces", exc_info=True)
