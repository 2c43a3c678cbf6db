"""Which hosts there are: this one's heartbeats, and the watch of all others'."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog

from foqs.host.host_watch import HostSign, HostWatch
from foqs.model import limits
from foqs.model.errors import FoqsError
from foqs.model.outage import Outage
from foqs.model.service import Service
from foqs.storage.meta import HostRow, MetaStore

_log = structlog.get_logger(__name__)
T = TypeVar("T")

OWNER_ASKED_MS = limits.MINUTE_MS
"""How long it is known that an owner was asked about; who waits for its death asks again every few seconds."""


class Membership(Service):
    """Beats every limits.HEARTBEAT_MS and reads all hosts' rows in the same round.

    It has a thread and a session of its own, so that no call of an operator stands in front of a heartbeat. `meta` is
    closed with it. `now_s` is a monotonic clock that any thread may read.
    """

    def __init__(
        self, meta: MetaStore, host_name: str, address: str, started_at_ms: int, now_s: Callable[[], float]
    ) -> None:
        super().__init__("membership")
        self._meta = meta
        self._host_name = host_name
        self._address = address
        self._started_at_ms = started_at_ms
        self._now_s = now_s
        self._watch = HostWatch()
        self.hosts_count = 1
        """Hosts that live as far as this one knows, itself included."""
        self._asked: dict[tuple[str, int], tuple[float, float]] = {}
        """When each owner, a host and its epoch, was asked about first and last; those of long ago are forgotten."""
        self._outage = Outage(now_s)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self.name)
        self._task: asyncio.Task[None] | None = None

    def is_dead(self, host_name: str, epoch: int) -> bool:
        """Whether the owner of that epoch was watched long enough to be sure; any thread may ask, and nothing blocks.

        A host that has just started, or could not reach the meta database lately, calls nobody dead. Nor does one that
        is asked about an owner for the first time: it asks again after the next round.
        """
        now_s = self._now_s()
        since_s, _ = self._asked.get((host_name, epoch), (now_s, now_s))
        self._asked[host_name, epoch] = since_s, now_s
        return self._watch.is_dead(host_name, since_s, now_s)

    def use_url(self, url: str) -> None:
        """New sessions are opened by this URL, which leads to the same database."""
        self._meta.use_url(url)

    async def _start(self) -> None:
        await self._on_thread(self._meta.forget_hosts)
        await self._round()
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            try:
                await self._on_thread(lambda: self._meta.remove_host(self._host_name))
            except FoqsError as error:
                _log.warning("host_row_left_behind", error=str(error))
        self._thread.shutdown(wait=True)
        self._meta.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(limits.HEARTBEAT_MS / 1000)
            try:
                await self._round()
                self._outage.has_ended()
            except FoqsError as error:
                if self._outage.is_to_be_told(str(error)):
                    _log.warning("heartbeat_missed", error=str(error))
            except Exception:  # A defect must not end the heartbeats for good.
                _log.error("host_defect", work="heartbeat", exc_info=True)

    async def _round(self) -> None:
        asked_s = self._now_s()
        try:
            rows = await self._on_thread(self._beat)
        except BaseException:
            self._watch.missed()
            raise
        self._watch.saw(asked_s, self._now_s(), {row.name: HostSign(row.started_at, row.heartbeat_at) for row in rows})
        self.hosts_count = 1 + self._watch.others_count(self._host_name)
        self._forget_asked(self._now_s() - OWNER_ASKED_MS / 1000)
        for row in rows:
            if row.name == self._host_name and row.started_at != self._started_at_ms:
                self._tell_of_namesake(row)

    def _forget_asked(self, before_s: float) -> None:
        for owner, (_, last_s) in list(self._asked.items()):
            if last_s < before_s:
                self._asked.pop(owner, None)

    def _beat(self) -> list[HostRow]:
        return self._meta.beat(self._host_name, self._address, self._started_at_ms)

    def _tell_of_namesake(self, row: HostRow) -> None:
        if self._task is not None:  # Before it is set: the row may be that of this host's last life.
            _log.error("host_name_shared", host_name=self._host_name, other_address=row.address)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
