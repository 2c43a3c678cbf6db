"""Tokens are revoked on a cluster under load: how soon every host refuses them, whatever the caller is doing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from foqs import AdminClient
from foqs.client.aio import AsyncAdminClient
from foqs.model.access import AccessGrant, AccessMode
from foqs.model.errors import PermissionDeniedError
from foqs.wire.codec import structs
from loadtest.bench.wire import Wire
from loadtest.stress.hosts import cluster
from loadtest.stress.verdict import Bound, Verdict
from tests.support.faults import FaultError
from tests.support.faults.load import NAMESPACE
from tests.support.steady_traffic import Traffic

REVOKED_MS_MAX = 2_000
_HERE = "127.0.0.1"
_CALM_ITEMS = 300
_POLL_S = 0.01
_PATIENCE_S = 60.0
_LONG_POLL_MS = 30_000
_VICTIM = "victim"


@dataclass(frozen=True, slots=True)
class Course:
    hosts: int = 3
    times: int = 100


class Caller:
    """Uses a token at one host in one way. `is_served` once that goes well."""

    def __init__(self, port: int, token: str) -> None:
        self.is_served = asyncio.Event()
        self._port, self._token = port, token

    async def calls(self) -> float:
        """Call again and again on one connection; the time when the host refuses or closes it."""
        wire = await self._signed_in()
        try:
            while True:
                await wire.call("getActiveTopics", structs.ActiveTopicsRequest(NAMESPACE))
                self.is_served.set()
                await asyncio.sleep(_POLL_S)
        except (PermissionDeniedError, ConnectionError):
            return time.monotonic()
        finally:
            wire.close()

    async def long_polls(self) -> float:
        """Wait for items that never come; the time when the host ends that."""
        wire = await self._signed_in()
        request = structs.DequeueRequest(NAMESPACE, [structs.TopicDemand("never", 1)], None, _LONG_POLL_MS)
        try:
            while True:
                waiting = wire.call("dequeue", request)
                # The answer of another call shows that the host has got this one.
                await wire.call("getActiveTopics", structs.ActiveTopicsRequest(NAMESPACE))
                self.is_served.set()
                await waiting
        except (PermissionDeniedError, ConnectionError):
            return time.monotonic()
        finally:
            wire.close()

    async def sign_ins(self) -> float:
        """Connect and sign in again and again; the time when the host refuses that."""
        try:
            while True:
                wire = await self._signed_in()
                wire.close()
                self.is_served.set()
                await asyncio.sleep(_POLL_S)
        except PermissionDeniedError:
            return time.monotonic()

    async def is_known(self) -> bool:
        """Whether the host knows the token."""
        try:
            (await self._signed_in()).close()
        except PermissionDeniedError:
            return False
        return True

    async def _signed_in(self) -> Wire:
        wire = await Wire.connect(self._port, _HERE)
        try:
            await wire.call("authenticate", structs.AuthenticateRequest(self._token))
        except BaseException:
            wire.close()
            raise
        return wire


WAYS: dict[str, Callable[[Caller], Awaitable[float]]] = {
    "calls on one connection": Caller.calls,
    "long polls": Caller.long_polls,
    "new connections": Caller.sign_ins,
}


def run(course: Course) -> Verdict:
    verdict = Verdict("revocation")
    with cluster(course.hosts) as hosts:
        hosts.create([NAMESPACE])
        root, worker = _enforce(hosts.addresses[0])
        ports = [program.port for program in hosts.programs]
        asyncio.run(_until_known(ports, root))
        asyncio.run(_until_known(ports, worker))
        with Traffic(hosts.addresses, token=worker) as traffic:
            traffic.go_on(consumed=_CALM_ITEMS)
            found = asyncio.run(_revoke(course, ports, root, traffic))
            traffic.end()
    _judge(verdict, found, traffic)
    verdict.facts |= {"hosts": course.hosts, "tokens revoked": course.times}
    return verdict


def _enforce(address: str) -> tuple[str, str]:
    """The tokens of an administrator and of the load, with enforced access."""
    with AdminClient(address) as admin:
        admin.create_principal("root", [AccessGrant("*", ("admin",))])
        for name in ("load", _VICTIM):
            admin.create_principal(name, [AccessGrant(NAMESPACE, ("worker",))])
        root, worker = (admin.create_token(name).token for name in ("root", "load"))
        admin.set_access_mode(AccessMode.ENFORCED)
    return root, worker


async def _until_known(ports: Sequence[int], token: str) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    for port in ports:
        while not await Caller(port, token).is_known():
            if time.monotonic() > until_s:
                raise FaultError(f"the host at {port} does not know a new token after {_PATIENCE_S:.0f} s")
            await asyncio.sleep(_POLL_S)


async def _revoke(course: Course, ports: Sequence[int], root: str, traffic: Traffic) -> list[dict[str, float]]:
    """For each token: after how many ms the last host refused each way, since the answer of the revocation."""
    found = []
    for number in range(course.times):
        # Each host in turn is the one that is asked.
        async with AsyncAdminClient(f"{_HERE}:{ports[number % len(ports)]}", token=root) as admin:
            found.append(await _revoke_one(admin, ports))
        if traffic.failures:
            break
    return found


async def _revoke_one(admin: AsyncAdminClient, ports: Sequence[int]) -> dict[str, float]:
    made = await admin.create_token(_VICTIM)
    await _until_known(ports, made.token)
    callers = {way: [Caller(port, made.token) for port in ports] for way in WAYS}
    async with asyncio.timeout(_PATIENCE_S), asyncio.TaskGroup() as group:
        tasks = {
            way: [group.create_task(_run(partial(WAYS[way], caller))) for caller in each]
            for way, each in callers.items()
        }
        for each in callers.values():
            for caller in each:
                await caller.is_served.wait()
        early = [way for way, each in tasks.items() for task in each if task.done()]
        if early:
            raise FaultError(f"refused before the token was revoked: {early}")
        await admin.revoke_token(made.info.id)
        revoked_s = time.monotonic()
    if any([await Caller(port, made.token).is_known() for port in ports]):
        raise FaultError("a token that was refused is taken again")
    return {way: 1000 * max(0.0, *[task.result() - revoked_s for task in each]) for way, each in tasks.items()}


async def _run(work: Callable[[], Awaitable[float]]) -> float:
    return await work()


def _judge(verdict: Verdict, found: Sequence[dict[str, float]], traffic: Traffic) -> None:
    for way in WAYS:
        verdict.rows.append(_row(way, [one[way] for one in found]))
    verdict.rows.append(_row("all of them", [max(one.values()) for one in found]))
    consumed = set(traffic.consumed)
    verdict.facts |= {"items delivered": len(consumed), "failures": "; ".join(map(str, traffic.failures[:3]))}
    verdict.bounds += [
        Bound("longest until all hosts refuse, ms", verdict.rows[-1]["longest ms"], REVOKED_MS_MAX),
        Bound("calls of others failed", len(traffic.failures), 0),
        Bound("items lost", len(traffic.enqueued - consumed), 0),
        Bound("items delivered twice", len(traffic.consumed) - len(consumed), 0),
    ]


def _row(name: str, found_ms: Sequence[float]) -> dict[str, Any]:
    ordered = sorted(found_ms)
    return {
        "refused": name,
        "revocations": len(ordered),
        "median ms": round(median(ordered), 1),
        "p90 ms": round(ordered[len(ordered) * 9 // 10], 1),
        "longest ms": round(ordered[-1], 1),
    }
