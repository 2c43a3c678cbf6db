"""Millions of items in one topic: the host's memory, its restart, and whether dequeues stay as fast."""

from __future__ import annotations

import asyncio
import time

import uvloop

from foqs.storage.session import connect
from loadtest.bench.cluster import NAMESPACE, Cluster, running_cluster, usage
from loadtest.bench.wire import Wire

BATCH, IN_FLIGHT = 100, 16
DRAINED = 50_000
_ROWS = 10_000


def backlog(cluster: Cluster, items_count: int, runs: int) -> list[dict[str, float]]:
    """The cluster must be empty; `items_count` items are written into its tables, once, as a host would have.

    Every run restarts the host, takes the first item, and drains some from the deep topic, after the same on a
    cluster that has no more than is drained.
    """
    cluster.stop_host()
    _fill(cluster, "deep", items_count)
    found = []
    with running_cluster() as empty:
        for run in range(runs):
            plain = _plain_run(empty)
            before_count = items_count - run * (DRAINED + 1)
            found.append(plain | _deep_run(cluster, before_count, plain["empty_rss_mib"]))
    for figures in found:
        figures["deep_to_few"] = figures["dequeues_per_s_deep"] / figures["dequeues_per_s_few"]
    return found


def _plain_run(cluster: Cluster) -> dict[str, float]:
    cluster.stop_host()
    cluster.start_host()
    rss_mib = usage(cluster.host_pid).rss_mib
    _enqueue(cluster, "few", DRAINED)
    return {"empty_rss_mib": rss_mib, "dequeues_per_s_few": _drain(cluster, "few", DRAINED)}


def _deep_run(cluster: Cluster, count: int, empty_rss_mib: float) -> dict[str, float]:
    """`count` is what must be there."""
    began_s = time.monotonic()
    cluster.start_host()
    first_item_s = _first_item(cluster, "deep", began_s)
    counted = _ready_count(cluster, "deep")
    if counted != count - 1:
        raise SystemExit(f"the host counts {counted} items where {count - 1} must be")
    counted_s = time.monotonic() - began_s
    rate = _drain(cluster, "deep", DRAINED)
    rss_mib_max = usage(cluster.host_pid).rss_mib_max
    cluster.stop_host()
    return {
        "backlog": count,
        "restart_to_first_item_s": first_item_s,
        "restart_to_exact_counts_s": counted_s,
        "rss_above_empty_mib": rss_mib_max - empty_rss_mib,
        "dequeues_per_s_deep": rate,
    }


def _enqueue(cluster: Cluster, topic: str, count: int) -> None:
    async def work() -> None:
        wire = await Wire.connect(cluster.port)
        for _ in range(count // 1_000):
            await wire.enqueue([(topic, b"x" * 200, n % 10) for n in range(1_000)])
        wire.close()

    uvloop.run(work())


def _drain(cluster: Cluster, topic: str, count: int) -> float:
    """Items a second until the last ack; never takes more than `count`, for what is left is held against it."""

    async def work() -> float:
        wire = await Wire.connect(cluster.port)
        left = count
        began_s = last_ack_s = time.monotonic()

        async def one() -> None:
            nonlocal left, last_ack_s
            while left > 0:
                asked = min(BATCH, left)
                left -= asked
                items = await wire.dequeue(topic, asked, 1_000)
                left += asked - len(items)
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


def _ready_count(cluster: Cluster, topic: str) -> int:
    async def work() -> int:
        wire = await Wire.connect(cluster.port)
        count = await wire.ready_count(topic)
        wire.close()
        return count

    return uvloop.run(work())


def _fill(cluster: Cluster, topic: str, count: int) -> None:
    """Rows as inserts would have left them; the host is away."""
    meta = connect(cluster.meta_url)
    with meta.cursor() as cursor:
        cursor.execute("SELECT number FROM namespace WHERE name = %s", (NAMESPACE,))
        namespace = cursor.fetchone()[0]
    meta.close()
    now_ms = time.time_ns() // 1_000_000
    for shard_id, url in cluster.shard_urls.items():
        share = len(range(shard_id, count, len(cluster.shard_urls)))
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
