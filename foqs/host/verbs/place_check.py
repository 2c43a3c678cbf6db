"""The check of a place for a new or relocated shard. Only its verbs make a host connect to an address of their callers.

So a host connects to listed servers only, one at a time. If a database cannot be opened, the caller gets the same error
after the same time for every reason, because otherwise hosts would scan ports and logins for any caller.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from typing import Final, Protocol

import structlog

from foqs.host.registry.meta_calls import MetaCalls
from foqs.model import limits
from foqs.model.cluster import ShardRow, check_id_is_free
from foqs.model.errors import InvalidArgumentError, UnavailableError
from foqs.storage.meta.meta_shards import Relocation

PLACE_CHECK_MS: Final = 5 * limits.SECOND_MS
"""Timeout of the opening of a database, and the earliest time of the answer that it failed, in milliseconds."""

_log = structlog.get_logger(__name__)


class NotOpenedError(Exception):
    """The database could not be opened. The message quotes its server, and is for the log only."""


class Databases(Protocol):
    """The databases that a host can open; foqs.shard_factory.ShardFactory is the real one."""

    def check_server(self, place: str, places_before: Collection[str]) -> None:
        """Raise InvalidArgumentError for a server that hosts must not log in to."""

    def check_database(self, shard_id: int, place: str) -> None:
        """Raise NotOpenedError, or a FoqsError for the caller, if a new shard cannot be at the place. It blocks."""

    def check_copy(self, shard_id: int, place: str, before: ShardRow | None) -> None:
        """Raise the same if an existing shard cannot be there, or if its database lacks transactions of this row."""

    def is_dead(self, owner: str, epoch: int) -> bool:
        """True if the process that owned a shard under this epoch has surely ended."""


class PlaceCheck:
    """Checks places, one at a time. `ShardCalls` uses it."""

    def __init__(
        self,
        calls: MetaCalls,
        databases: Databases,
        host_name: str,
    ) -> None:
        self._calls = calls
        self._databases = databases
        self._host_name = host_name
        self._is_under_way = False
        self._database_lock = threading.Lock()
        """Held while a thread opens a database, which can take longer than its caller waits."""

    async def check(self, shard_id: int, place: str) -> None:
        """Raise InvalidArgumentError for a place where the shard cannot be served, and UnavailableError.

        Raises AlreadyExistsError for the id of an existing shard, whose database is then not opened.
        """
        rows = await self._calls.run(lambda meta: meta.shards.read_all())
        self._databases.check_server(place, [row.place for row in rows if row.place])
        check_id_is_free({row.shard_id: row for row in rows}.get(shard_id), place)
        await self._check_alone(shard_id, place, lambda: self._databases.check_database(shard_id, place))

    async def relocate(self, shard_id: int, place: str, *, allow_older: bool) -> ShardRow:
        """Change the place of a parked shard. Raises the errors of `Relocation.check` and of `check`.

        Its database must have the last reported transaction of the shard, unless `allow_older`.
        """
        rows = {row.shard_id: row for row in await self._calls.run(lambda meta: meta.shards.read_all())}
        self._databases.check_server(place, [row.place for row in rows.values() if row.place])
        row, by_place = rows.get(shard_id), {row.place: row.shard_id for row in rows.values() if row.use.is_known}
        relocation = Relocation(self._databases.is_dead, allow_older)
        relocation.check(row, shard_id, place, by_place)
        before = None if allow_older else row
        await self._check_alone(shard_id, place, lambda: self._databases.check_copy(shard_id, place, before))
        relocation = relocation._replace(checked=before)
        return await self._calls.run(lambda meta: meta.shards.relocate(shard_id, place, relocation))

    async def _check_alone(self, shard_id: int, place: str, check: Callable[[], None]) -> None:
        if self._is_under_way:
            raise _busy()
        self._is_under_way = True
        try:
            await self._check_one(shard_id, place, check)
        finally:
            self._is_under_way = False

    async def _check_one(self, shard_id: int, place: str, check: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        answer_s = loop.time() + PLACE_CHECK_MS / 1000
        try:
            async with asyncio.timeout_at(answer_s):
                await self._calls.run(lambda _: self._open_database(check))
            return
        except TimeoutError:
            reason = f"it was not open after {PLACE_CHECK_MS} ms"
        except NotOpenedError as error:
            reason = str(error)
        _log.warning("shard_place_refused", shard=shard_id, place=place, error=reason)
        await asyncio.sleep(max(0.0, answer_s - loop.time()))
        raise InvalidArgumentError(
            f"the database of shard {shard_id} at {place} could not be opened: nothing was done, see the log "
            f"of host {self._host_name}"
        )

    def _open_database(self, check: Callable[[], None]) -> None:
        if not self._database_lock.acquire(blocking=False):
            raise _busy()
        try:
            check()
        finally:
            self._database_lock.release()


def _busy() -> UnavailableError:
    return UnavailableError(
        "another shard is being added or relocated, and that is done one at a time: nothing was done, try again",
        retry_after_ms=limits.META_CALLS_RETRY_MS,
        nothing_done=True,
    )
