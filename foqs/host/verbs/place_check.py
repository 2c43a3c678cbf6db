"""The check of a place for a new shard, the only verb that makes a host connect to an address from its caller.

So a host connects to listed servers only, one at a time. If a database cannot be opened, the caller gets the same error
after the same time for every reason, because otherwise hosts would scan ports and logins for any caller.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from typing import Final

import structlog

from foqs.host.registry.meta_calls import MetaCalls
from foqs.model import limits
from foqs.model.cluster import check_id_is_free
from foqs.model.errors import InvalidArgumentError, UnavailableError

PLACE_CHECK_MS: Final = 5 * limits.SECOND_MS
"""Timeout of the opening of a database, and the earliest time of the answer that it failed, in milliseconds."""

_log = structlog.get_logger(__name__)


class NotOpenedError(Exception):
    """The database could not be opened. The message quotes its server, and is for the log only."""


class PlaceCheck:
    """Checks places, one at a time. `ShardCalls` uses it."""

    def __init__(
        self,
        calls: MetaCalls,
        check_server: Callable[[str, Collection[str]], None],
        check_database: Callable[[int, str], None],
        host_name: str,
    ) -> None:
        """`check_server(place, places_before)` raises InvalidArgumentError for a server that hosts must not log in to.

        `check_database(shard_id, place)` blocks; it raises NotOpenedError, and FoqsError for errors meant for callers.
        """
        self._calls = calls
        self._check_server = check_server
        self._check_database = check_database
        self._host_name = host_name
        self._is_under_way = False
        self._database_lock = threading.Lock()
        """Held while a thread opens a database, which can take longer than its caller waits."""

    async def check(self, shard_id: int, place: str) -> None:
        """Raise InvalidArgumentError for a place where the shard cannot be served, and UnavailableError.

        Raises AlreadyExistsError for the id of an existing shard, whose database is then not opened.
        """
        rows = await self._calls.run(lambda meta: meta.shards.read_all())
        self._check_server(place, [row.place for row in rows if row.place])
        check_id_is_free({row.shard_id: row for row in rows}.get(shard_id), place)
        if self._is_under_way:
            raise _busy()
        self._is_under_way = True
        try:
            await self._check_one(shard_id, place)
        finally:
            self._is_under_way = False

    async def _check_one(self, shard_id: int, place: str) -> None:
        loop = asyncio.get_running_loop()
        answer_s = loop.time() + PLACE_CHECK_MS / 1000
        try:
            async with asyncio.timeout_at(answer_s):
                await self._calls.run(lambda _: self._open_database(shard_id, place))
            return
        except TimeoutError:
            reason = f"it was not open after {PLACE_CHECK_MS} ms"
        except NotOpenedError as error:
            reason = str(error)
        _log.warning("shard_not_added", shard=shard_id, place=place, error=reason)
        await asyncio.sleep(max(0.0, answer_s - loop.time()))
        raise InvalidArgumentError(
            f"shard {shard_id} was not added: its database at {place} could not be opened: see the log of host "
            f"{self._host_name}"
        )

    def _open_database(self, shard_id: int, place: str) -> None:
        if not self._database_lock.acquire(blocking=False):
            raise _busy()
        try:
            self._check_database(shard_id, place)
        finally:
            self._database_lock.release()


def _busy() -> UnavailableError:
    return UnavailableError(
        "another shard is being added, and they are added one at a time: nothing was done, try again",
        retry_after_ms=limits.META_CALLS_RETRY_MS,
        nothing_done=True,
    )
