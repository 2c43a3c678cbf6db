"""A shop's queue in memory after a quarter of an hour of traffic: topics that move, wait, fail and stand still."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from foqs.client.sync import Client
from foqs.testing import MemoryQueue

SHOP: Final = "shop"
HOSTILE: Final = (
    "<img src=x onerror=alert(1)>",
    "'\"><script>alert(1)</script>",
    "\u202egnp.exe topic",
    "path/../with/slashes",
    "..",
    "a name {{ 7 * 7 }} %00 & ?x=1#y",
    "ж" * 127,
)
"""Names that callers can give to topics, and that pages must show as text."""
_STEP_MS: Final = 10_000
ReasonOf = Callable[[object], str]
_REASONS: Final = (
    ("CardDeclined: insufficient_funds (capture.py:88)", 11),
    ("HTTPError: 503 from psp.example/charge (client.py:41)", 5),
    ("TimeoutError: no answer in 10 s (client.py:37)", 2), ("KeyError: 'currency' (capture.py:52)", 1),
)  # fmt: skip
REGIONS: Final = ("eu-west", "eu-north", "us-east")
AREAS: Final = ("orders", "emails", "thumbnails", "search.index", "push")


def filled_shop(*, steps: int) -> MemoryQueue:
    """Return a queue whose topics have had this many steps of 10 s of traffic."""
    queue = MemoryQueue([SHOP, "default"], shard_count=4)
    admin, client = queue.admin(), queue.client()
    admin.update_namespace(SHOP, attempts_max=3)
    admin.set_topic_policy(SHOP, "payments.capture", deliveries_per_second_max=5, backoff_ms=60_000)
    fail = _failures()
    for step in range(steps):
        put(client, "payments.capture", 26 + step % 5, priority=-(step % 3))
        put(client, "orders.eu-west.checkout", 40 + step % 7)
        put(client, "emails.bounce", 4)
        put(client, "webhooks.partner-17", 6)
        put(client, "thumbnails", 30 + 3 * (step % 4))
        if step < 30:
            put(client, "reports.nightly", 3)
        for number, name in enumerate(f"{area}.{region}" for area in AREAS for region in REGIONS):
            if step % (2 + number % 5) == 0:
                put(client, f"{name}.c{number:03}", 1 + number % 4)
        work(client, "payments.capture", 20, f"capture@pay-{step % 4}", fail if step % 3 == 0 else None)
        work(client, "orders.eu-west.checkout", 48, "checkout@orders-1")
        work(client, "thumbnails", 31, f"resize@img-{step % 2}")
        work(
            client, "webhooks.partner-17", 8, "hooks@edge-3", lambda item: "HTTPError: 503 from partner-17 (hook.py:12)"
        )
        if step < 20:
            work(client, "emails.bounce", 3, "bounces@mail-2")
            work(client, "reports.nightly", 1, "reports@batch-1")
        if step % 3 == 0:
            for number, name in enumerate(f"{area}.{region}" for area in AREAS for region in REGIONS):
                work(client, f"{name}.c{number:03}", 5, f"{name}@pool")
        queue.clock.advance(_STEP_MS)
    admin.set_topic_policy(SHOP, "reports.nightly", dequeue_paused=True, reason="migration, back at 21:30 (ana)")
    for number, name in enumerate(f"{area}.{region}" for area in AREAS for region in REGIONS):
        put(client, f"{name}.c{number:03}", 1 + number % 3)
    put(client, "orders.eu-west.checkout", 20)
    client.enqueue(SHOP, "payments.capture", b"later", delay_ms=600_000)
    client.dequeue(SHOP, "payments.capture", 4, consumer="capture@pay-7f9c-0m4t/1")
    client.dequeue(SHOP, "orders.eu-west.checkout", 12, consumer="checkout@orders-1")
    return queue


def put(client: Client, topic: str, count: int, *, priority: int = 0) -> None:
    """Enqueue this many items with a payload as of a shop."""
    for number in range(count):
        payload = f'{{"order": {88_120 + 13 * number}, "amount": {19.9 + 3.1 * number:.2f}, "currency": "EUR"}}'
        client.enqueue(SHOP, topic, payload.encode(), priority=priority)


def work(client: Client, topic: str, count: int, consumer: str, reason_of: ReasonOf | None = None) -> None:
    """Take this many items and settle them: fail each with a reason if one is given."""
    items = client.dequeue(SHOP, topic, count, consumer=consumer)
    if not items:
        return
    if reason_of is None:
        client.ack(SHOP, items)
        return
    half = len(items) if "webhooks" in topic else len(items) // 2
    for number, item in enumerate(items[:half]):
        client.nack(SHOP, item, reason=reason_of(item), dead_letter=number % 4 != 3)
    if items[half:]:
        client.ack(SHOP, items[half:])


def add_hostile_topics(queue: MemoryQueue) -> None:
    """Store a dead and a ready item in topics with hostile names, with hostile payloads and reasons."""
    client = queue.client()
    for name in HOSTILE:
        client.enqueue(SHOP, name, b"<script>alert(1)</script>\x1b[31m \xe2\x80\xae", metadata=b"<b>\x00\xff")
        item = client.dequeue(SHOP, name, 1, consumer="<svg onload=alert(1)>")[0]
        client.nack(SHOP, item, dead_letter=True, reason="<img src=x onerror=alert(2)>\u202e")
        client.enqueue(SHOP, name, b"\xff\xfe\x00")


def _partner_away(_: object) -> str:
    return "HTTPError: 503 from partner-17 (hook.py:12)"


def _failures() -> Callable[[object], str]:
    """Return a function that gives the reasons in turn, as often as each is common."""
    turns = [text for text, count in _REASONS for _ in range(count)]
    count = 0

    def reason_of(_: object) -> str:
        nonlocal count
        count += 1
        return turns[count * 7 % len(turns)]

    return reason_of
