"""Rows for Spark to write, what of them is in the queue then, and what Spark reads there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foqs import Client
from foqs.client.queue_items import Item


def save(frame: Any, address: str, namespace: str, mode: str = "append", kind: str = "foqs", /, **options: str) -> None:
    """Write the frame; dedup is none where nothing else is said."""
    required = {"addresses": address, "namespace": namespace, "dedup": "none"}
    frame.write.format(kind).options(**required | options).mode(mode).save()


def load(spark: Any, address: str, namespace: str, schema: str | None = None, **options: str) -> Any:
    reader = spark.read.format("foqs").options(addresses=address, namespace=namespace, **options)
    return (reader.schema(schema) if schema else reader).load()


def drained(client: Client, namespace: str) -> Iterator[Item]:
    """All ready items, acked."""
    while topics := [stats.topic for stats in client.topics(namespace) if stats.ready]:
        items = client.dequeue(namespace, topics, 1_000)
        assert not client.ack(namespace, items)
        yield from items


def numbered(spark: Any, count: int, partitions: int = 2) -> Any:
    """Rows whose payload is their number."""
    return spark.range(0, count, 1, partitions).selectExpr("concat('t', id % 10) AS topic", "string(id) AS payload")


def numbers(client: Client, namespace: str) -> Counter[int]:
    """How often each row is in the queue, where payloads are their numbers."""
    return Counter(int(item.payload) for item in drained(client, namespace))


def keyed(frame: Any, dedup: str = "key") -> Any:
    """With the payload as the dedup id where that is the kind."""
    return frame.selectExpr("*", "payload AS dedup_id") if dedup == "key" else frame


def stream(rows: Any, address: str, namespace: str, home: Path, kind: str = "foqs", /, **options: str) -> None:
    """Write all that there is of a stream, from its checkpoint below `home` on."""
    writer = rows.writeStream.format(kind).options(addresses=address, namespace=namespace, **options)
    writer = writer.option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True)
    writer.start().awaitTermination()
