"""Millions of items in one topic: the host's memory, its restart, and whether dequeues stay as fast."""

from __future__ import annotations

import asyncio
import time

import uvloop

from foqs.storage.session import connect
from loadtest.bench.cluster import NAMESPACE, Cluster, usage
from loadtest.bench.wire import Wire

BATCH, IN_FLIGHT = 100, 16
DRAINED = 50_000
_ROWS = 10_000


def backlog(cluster: Cluster, items_count: int, runs: int) -> list[dict[str, float]]:
    """The cluster must be empty; `items_count` items are written into its tables, once, as a host would have.

    Every run restarts the host, takes the first item, and drains some from the deep topic; as many drains of a
    topic that holds no more than they take came before.
    """
    few = [_enqueue_and_drain(cluster) for _ in range(runs)]
    cluster.stop_host()
    cluster.start_host()
    empty_mib = usage(cluster.host_pid).rss_mib
    cluster.stop_host()
    _fill(cluster, "deep", items_count)
    return [_deep_run(cluster, empty_mib, rate_few) | {"backlog": items_count} for rate_few in few]


def _enqueue_and_drain(cluster: Cluster) -> float:
    _enqueue(cluster, "few", DRAINED)
    return _drain(cluster, "few", DRAINED)


def _deep_run(cluster: Cluster, empty_mib: float, rate_few: float) -> dict[str, float]:
    began_s = time.monotonic()
    cluster.start_host()
    first_item_s = _first_item(cluster, "deep", began_s)
    rate_deep = _drain(cluster, "deep", DRAINED)
    rss_mib = usage(cluster.host_pid).rss_mib_max
    cluster.stop_host()
    return {
        "restart_to_first_item_s": first_item_s,
        "rss_above_empty_mib": rss_mib - empty_mib,
        "dequeues_per_s_few": rate_few,
        "dequeues_per_s_deep": rate_deep,
        "deep_to_few": rate_deep / rate_few,
    }


def _enqueue(cluster: Cluster, topic: str, count: int) -> None:
    async def work() -> None:
        wire = await Wire.connect(cluster.port)
        for _ in range(count // 1_000):
            await wire.enqueue([(topic, b"x" * 200, n % 10) for n in range(1_000)])
        wire.close()

    uvloop.run(work())


def _drain(cluster: Cluster, topic: str, count: int) -> float:
    async def work() -> float:
        wire = await Wire.connect(cluster.port)
        left = count
        began_s = last_ack_s = time.monotonic()

        async def one() -> None:
            nonlocal left, last_ack_s
            while left > 0:
                items = await wire.dequeue(topic, BATCH, 1_000)
                left -= len(items)
                if not items:
                    return
                await wire.ack(items)
                last_ack_s = time.monotonic()

        await asyncio.gather(*[one() for _ in range(IN_FLIGHT)])
        wire.close()
        return (count - left) / (last_ack_s - began_s)

    return uvloop.run(work())


def _first_item(cluster: Cluster, topic: str, began_s: float) -> float:
    async def work() -> float:
        wire = await Wire.connect(cluster.port)
        items = await wire.dequeue(topic, 1, 30_000)
        elapsed_s = time.monotonic() - began_s
        assert items
        await wire.ack(items)
        wire.close()
        return elapsed_s

    return uvloop.run(work())


def _fill(cluster: Cluster, topic: str, count: int) -> None:
    """Rows as inserts would have left them; the host is away."""
    meta = connect(cluster.meta_url)
    with meta.cursor() as cursor:
        cursor.execute("SELECT number FROM namespace WHERE name = %s", (NAMESPACE,))
        namespace = cursor.fetchone()[0]
    meta.close()
    now_ms, share = time.time_ns() // 1_000_000, count // len(cluster.shard_urls)
    for url in cluster.shard_urls.values():
        session = connect(url, 600_000)
        with session.cursor() as cursor:
            cursor.execute("SELECT topic_number_last FROM writer")
            number = cursor.fetchone()[0] + 1
            cursor.execute(
                "INSERT INTO topic (number, namespace, name) VALUES (%s, %s, %s)", (number, namespace, topic)
            )
            cursor.execute("UPDATE writer SET topic_number_last = %s", (number,))
            expires_at = now_ms + 10**9
            for first in range(0, share, _ROWS):
                values = ",".join(
                    f"({key},{number},{key % 10},{now_ms},{number},{key % 10},{now_ms},{expires_at},0,0,'',"
                    "REPEAT('x',200))"
                    for key in range(first + 1, min(first + _ROWS, share) + 1)
                )
                cursor.execute(
                    "INSERT INTO item (id, lane, urgency, due_at, topic, priority, enqueued_at, expires_at, lease_ms, "
                    f"at_most_once, metadata, payload) VALUES {values}"
                )
                session.commit()
        session.close()
