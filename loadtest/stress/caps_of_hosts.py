"""Caps over hosts of one cluster: each topic at its cap whoever delivers it, and what topics that wait cost each host.

The hosts, their server and the clients are real ones and time is real, so that this needs a quiet machine.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import select, update

from foqs import AsyncClient, Client
from foqs.client.queue_items import NewItem
from foqs.model import limits
from foqs.model.caps import shared_burst_of
from foqs.model.policy import OwnPolicy
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.meta.meta_tables import NAMESPACE, TOPIC_POLICY
from loadtest.stress.hosts import Hosts, cluster
from loadtest.stress.timed_host import COMMAND, take_hold
from loadtest.stress.verdict import Bound, Verdict
from tests.support.faults import FaultError

OFF_SHARE_MAX = 0.1
LEFT_SHARE_MAX = 0.01
"""Of topics with one token: it may go to a call that is over when its item comes, which is ready again then."""
HOLD_MS_MAX = 5.0
PARKED_MS_A_SECOND_MAX = 1.0
_HOME_CHANGE_S = 2.5
"""Twice a cap may go for so long after it has another home."""
_SPEEDS = "speeds"
_PARKED_RATE = 0.0001
_FOLLOWED_S = 3.0
"""Every host knows a policy within 2 s."""
_WARM_S = 5.0
_CONSUMERS = 4
"""On each host."""
_CALL_ITEMS = 100
_ROWS = 5_000
_POLICIES_MAX = limits.TOPIC_POLICIES_PER_NAMESPACE_MAX
_SPARE_ITEMS = 6
_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Course:
    hosts: int = 2
    topics: int = 3_000
    items_per_s: int = 1_000
    seconds: float = 60.0
    parked: int = 100_000
    rest_s: float = 20.0
    rests: int = 4
    """Stretches of that time after all topics wait. In the first ones their first items are still worked off."""
    joined_s: float = 10.0
    """How long topics are looked at after one more host came, which becomes the home of some."""


@dataclass(slots=True)
class _Loops:
    """What the event loops of the hosts are at."""

    hosts: Hosts
    _asked: Counter[str] = field(default_factory=Counter)

    def holds(self) -> list[tuple[float, str]]:
        """The longest hold of each event loop since the last time."""
        found = []
        for host in self.hosts.programs:
            self._asked[host.address] += 1
            found.append(take_hold(host, self._asked[host.address]))
        return found

    def busy_ms(self) -> list[float]:
        """The CPU time of each event loop since its begin."""
        stats = [Path(f"/proc/{host.pid}/task/{host.pid}/schedstat").read_text() for host in self.hosts.programs]
        return [int(stat.split()[0]) / 1e6 for stat in stats]


@dataclass(slots=True)
class _Deliveries:
    """When each topic had an item delivered, in seconds of this process."""

    times_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    count: int = 0

    def note(self, topics: Sequence[str]) -> None:
        now_s = time.monotonic()
        self.count += len(topics)
        for topic in topics:
            self.times_s[topic].append(now_s)

    def off(self, names: Sequence[str], rate: float, from_s: float, until_s: float) -> list[str]:
        """The topics that had another count than their cap makes, by more than an item and a tenth."""
        due = rate * (until_s - from_s)
        counts = {name: sum(from_s <= at_s < until_s for at_s in self.times_s[name]) for name in names}
        return [name for name, got in counts.items() if abs(got - due) > max(1.0, OFF_SHARE_MAX * due)]

    def over(self, rate: float, burst: float) -> list[str]:
        """The topics that had more than that at once, beyond what the rate makes."""
        return [name for name, times_s in self.times_s.items() if _level(times_s, rate) > burst]


def _level(times_s: Sequence[float], rate: float) -> float:
    highest = level = at_s = 0.0
    for now_s in times_s:
        level = max(0.0, level - rate * (now_s - at_s)) + 1
        at_s = now_s
        highest = max(highest, level)
    return highest


def run(course: Course) -> Verdict:
    verdict = Verdict(f"caps over {course.hosts} hosts")
    verdict.facts |= asdict(course)
    for part in (_waiting, _delivering):
        with cluster(course.hosts, COMMAND) as hosts:
            asyncio.run(part(hosts, _Loops(hosts), course, verdict))
    return verdict


# ---- topics at their caps ----


async def _delivering(hosts: Hosts, loops: _Loops, course: Course, verdict: Verdict) -> None:
    """Deliver all that caps let through, for the whole time; then one more host comes, and topics get other homes."""
    rate = course.items_per_s / course.topics
    names = [f"topic-{number:06d}" for number in range(course.topics)]
    seconds = _WARM_S + course.seconds + course.joined_s + _HOME_CHANGE_S
    await asyncio.to_thread(hosts.create, [_SPEEDS])
    await asyncio.to_thread(_set_caps, hosts, _SPEEDS, names, rate)
    await asyncio.to_thread(_fill, hosts, _SPEEDS, names, round(rate * seconds) + _SPARE_ITEMS)
    found = _Deliveries()
    async with _consuming(hosts.addresses, [_SPEEDS] * _CONSUMERS, found):
        await asyncio.sleep(_WARM_S)
        loops.holds()
        from_s = time.monotonic()
        await asyncio.sleep(course.seconds)
        until_s = time.monotonic()
        _note_holds(verdict, "delivering", loops.holds())
        burst = shared_burst_of(rate, course.hosts + 1) + 1
        over = found.over(rate, burst)
        await asyncio.to_thread(hosts.start)
        await asyncio.sleep(course.joined_s)
        _note_holds(verdict, "while a host joins", loops.holds())
    off = found.off(names, rate, from_s, until_s)
    over_joined = found.over(rate, burst + rate * _HOME_CHANGE_S)
    counted = sum([sum(from_s <= at_s < until_s for at_s in times_s) for times_s in found.times_s.values()])
    verdict.facts["delivered a second"] = counted / (until_s - from_s)
    verdict.bounds += [
        Bound(f"topics that are off their caps by over {OFF_SHARE_MAX:.0%} and an item", len(off), 0),
        Bound("topics that are faster than their caps", len(over), 0),
        Bound(f"or than twice that for {_HOME_CHANGE_S} s while a host joins", len(over_joined), 0),
    ]


@asynccontextmanager
async def _consuming(addresses: Sequence[str], namespaces: Sequence[str], found: _Deliveries) -> AsyncIterator[None]:
    """Consumers of any topic on all hosts, one on each for each time that a namespace is named."""

    async def consume(client: AsyncClient, namespace: str) -> None:
        while True:
            items = await client.dequeue(namespace, topic_prefix="", count=_CALL_ITEMS, wait_ms=5_000)
            found.note([item.topic for item in items])
            if items:
                await client.ack(namespace, [item.receipt for item in items])

    clients = [AsyncClient(address) for address in addresses]
    tasks = [asyncio.create_task(consume(client, name)) for client in clients for name in namespaces]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()  # It never ends by itself.
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in clients:
            await client.close()


# ---- topics that wait ----


async def _waiting(hosts: Hosts, loops: _Loops, course: Course, verdict: Verdict) -> None:
    """What topics cost that wait for their tokens, beside consumers that wait for any of them."""
    parts = [
        [f"parked-{number:06d}" for number in range(first, min(first + _POLICIES_MAX, course.parked))]
        for first in range(0, course.parked, _POLICIES_MAX)
    ]
    by_namespace = {f"parked-{number}": names for number, names in enumerate(parts)}
    await asyncio.to_thread(hosts.create, list(by_namespace))
    found = _Deliveries()
    async with _consuming(hosts.addresses, list(by_namespace), found):
        before = await _at_rest(loops, course)
    for namespace, names in by_namespace.items():
        await asyncio.to_thread(_set_caps, hosts, namespace, names, _PARKED_RATE)
        await asyncio.to_thread(_fill, hosts, namespace, names, 2)
    _note_holds(verdict, "setting caps, and enqueues", loops.holds())
    async with _consuming(hosts.addresses, list(by_namespace), found):
        await _all_had_an_item(found, course.parked)
        verdict.bounds.append(
            Bound(
                "topics without their first item, whose token went to a call that was over by then",
                course.parked - len(found.times_s),
                course.parked * LEFT_SHARE_MAX,
            )
        )
        await asyncio.sleep(_FOLLOWED_S)
        _note_holds(verdict, "until all wait", loops.holds())
        verdict.facts["delivered before all wait"] = found.count
        rests = [await _rest(loops, course, verdict, number) for number in range(course.rests)]
    for number, host in enumerate(hosts.programs):
        costs_ms = [busy_ms[number] - before[number] for busy_ms, _ in rests]
        held_ms, what = max(holds[number] for _, holds in rests)
        verdict.facts[f"event loop of {host.address}, ms a second, at rest"] = before[number]
        verdict.facts[f"what topics that wait cost {host.address}, ms a second, by stretch"] = costs_ms
        verdict.bounds += [
            Bound(
                f"what topics that wait cost {host.address}, ms a second, at last", costs_ms[-1], PARKED_MS_A_SECOND_MAX
            ),
            Bound(f"longest hold of {host.address} while all wait ({what}), ms", held_ms, HOLD_MS_MAX),
        ]


async def _rest(
    loops: _Loops, course: Course, verdict: Verdict, number: int
) -> tuple[list[float], list[tuple[float, str]]]:
    """A stretch in which all wait: the milliseconds a second of each event loop, and its longest hold."""
    busy_ms, holds = await _at_rest(loops, course), loops.holds()
    _note_holds(verdict, f"while all wait, stretch {number + 1}", holds)
    return busy_ms, holds


async def _at_rest(loops: _Loops, course: Course) -> list[float]:
    """The milliseconds a second of each event loop while nothing happens: the median of all seconds."""
    await asyncio.sleep(1.0)
    loops.holds()
    found: list[list[float]] = []
    before, began_s = loops.busy_ms(), time.monotonic()
    for _ in range(max(1, round(course.rest_s))):
        await asyncio.sleep(1.0)
        after, ended_s = loops.busy_ms(), time.monotonic()
        found.append([(now_ms - was_ms) / (ended_s - began_s) for now_ms, was_ms in zip(after, before, strict=True)])
        before, began_s = after, ended_s
    return [median(values) for values in zip(*found, strict=True)]


async def _all_had_an_item(found: _Deliveries, topics_count: int) -> None:
    """Return when each topic has had an item, or none has had its first one for a while."""
    count, until_s = 0, time.monotonic() + _PATIENCE_S
    while len(found.times_s) < topics_count and time.monotonic() < until_s:
        if len(found.times_s) > count:
            count, until_s = len(found.times_s), time.monotonic() + _PATIENCE_S
        await asyncio.sleep(0.1)


# ---- both ----


def _note_holds(verdict: Verdict, when: str, holds: Sequence[tuple[float, str]]) -> None:
    held_ms, what = max(holds)
    verdict.rows.append({"when": when, "longest hold of any host ms": held_ms, "in": what})


def _set_caps(hosts: Hosts, namespace: str, names: Sequence[str], rate: float) -> None:
    """By hand, since one call each would take minutes; hosts see it by the version of the namespace."""
    values = asdict(OwnPolicy(deliveries_per_second_max=rate))
    mine = NAMESPACE.c.name == namespace.encode()
    with closing(MetaStore(hosts.databases.meta_url)) as meta, meta._sessions.transaction() as connection:
        number = connection.execute(select(NAMESPACE.c.number).where(mine)).scalar_one()
        for first in range(0, len(names), _ROWS):
            rows = [_row(number, name, values) for name in names[first : first + _ROWS]]
            connection.execute(TOPIC_POLICY.insert(), rows)
        connection.execute(update(NAMESPACE).where(mine).values(policies_version=1))
    time.sleep(_FOLLOWED_S)


def _row(number: int, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {**values, "namespace": number, "topic": name.encode(), "reason": b""}


def _fill(hosts: Hosts, namespace: str, names: Sequence[str], count: int) -> None:
    """So many items of each topic, those of one call on one host, by turns."""
    batches: list[list[NewItem]] = [[]]
    for name in names:
        if len(batches[-1]) + count > limits.BATCH_ITEMS_MAX:
            batches.append([])
        batches[-1] += [NewItem(name, b"x" * 20)] * count
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(address)) for address in hosts.addresses]
        for number, batch in enumerate(batches):
            result = clients[number % len(clients)].enqueue_many(namespace, batch)
            if result.errors:
                raise FaultError(f"an enqueue failed: {next(iter(result.errors.values()))}")
