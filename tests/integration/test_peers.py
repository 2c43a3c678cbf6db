"""Every queue that foqs is measured against keeps the adapter's contract, or its figures would mean nothing.

A peer that is not installed is skipped, which is right here alone: foqs needs none of them. `make peers` installs them.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from loadtest.peers import registry
from loadtest.peers.adapter import Adapter, Client, Held, Offer
from tests.support.waiting import PATIENCE_MS, longer

pytestmark = [pytest.mark.deep]
PEERS = [name for name in registry.names() if name not in ("foqs", "foqs-compiled", "raw")]
NEEDED = "mariadb"
"""Its server is one that foqs's own tests need, so there is no excuse."""
TOPICS = [f"topic-{number}" for number in range(8)]
LEASE_MS = 600_000
SHORT_LEASE_MS = 1_000
IN_FLIGHT = 4


@pytest.fixture(scope="module", params=PEERS)
def home(request: pytest.FixtureRequest) -> Iterator[tuple[Adapter, Path]]:
    """A started peer and its directory."""
    missing = registry.installed(request.param)
    if missing is not None and request.param != NEEDED:
        pytest.skip(missing)
    adapter = registry.new_adapter(request.param)
    if hasattr(adapter, "lease_ms"):
        adapter.lease_ms = LEASE_MS
    # Not pytest's tmp_path: servers that run as users of their own must get in.
    with tempfile.TemporaryDirectory(prefix="foqs-peers-") as directory:
        Path(directory).chmod(0o755)
        try:
            adapter.start(Path(directory), TOPICS)
            yield adapter, Path(directory)
        finally:
            adapter.stop()


@pytest.fixture
def peer(home: tuple[Adapter, Path]) -> Adapter:
    return home[0]


@pytest.fixture
async def client(peer: Adapter) -> AsyncIterator[Client]:
    client = await peer.connect(IN_FLIGHT)
    yield client
    await client.close()


def without(peer: Adapter, feature: str) -> bool:
    return feature in peer.lacks


async def claim_all(client: Client, topics: Sequence[str], count: int) -> list[Held]:
    """In as many claims as it takes; fails when they do not come."""
    held: list[Held] = []
    async with asyncio.timeout(PATIENCE_MS / 1_000):
        while len(held) < count:
            held += await client.claim(topics, count - len(held), 1_000)
    return held


async def test_an_item_lives_from_enqueue_to_ack_and_then_is_gone(client: Client) -> None:
    payloads = {bytes([number]) * 200 for number in range(100)}
    await client.enqueue([Offer(TOPICS[0], payload) for payload in payloads])
    held = await claim_all(client, [TOPICS[0]], 100)
    assert {one.payload for one in held} == payloads
    await client.ack(held)
    assert await client.claim([TOPICS[0]], 1, 50) == []


async def test_a_call_of_many_topics_puts_each_item_under_its_own(client: Client) -> None:
    await client.enqueue([Offer(topic, topic.encode()) for topic in TOPICS])
    for topic in TOPICS:
        held = await claim_all(client, [topic], 1)
        assert [one.payload for one in held] == [topic.encode()]
        await client.ack(held)


async def test_a_claim_of_many_topics_gets_what_there_is_of_any_and_waits_for_any(peer: Adapter) -> None:
    if without(peer, "many_topics"):
        pytest.skip("a claim is of one topic there, and it says so")
    # A client of its own: a queue that pushes goes on pushing to those that once claimed from a topic.
    client = await peer.connect(IN_FLIGHT)
    try:
        await client.enqueue([Offer(topic, topic.encode()) for topic in TOPICS[:3]])
        held = await claim_all(client, TOPICS[:4], 3)
        assert {one.payload for one in held} == {topic.encode() for topic in TOPICS[:3]}
        waiting = asyncio.create_task(client.claim(TOPICS[:4], 2, PATIENCE_MS))
        await asyncio.sleep(0)
        await client.enqueue([Offer(TOPICS[3], b"late")])
        held += await waiting
        assert held[-1].payload == b"late"
        await client.nack(held[:1], 0)
        await client.ack(held[1:])
        (again,) = await claim_all(client, TOPICS[:4], 1)
        assert again.payload == held[0].payload
        await client.ack([again])
    finally:
        await client.close()


async def test_a_claimed_item_is_not_claimed_by_another_client(peer: Adapter, client: Client) -> None:
    await client.enqueue([Offer(TOPICS[1], b"one"), Offer(TOPICS[1], b"two")])
    first = await claim_all(client, [TOPICS[1]], 1)
    # A queue that pushes may have both on their way to this client; a claim gets them all the same.
    second = await claim_all(client, [TOPICS[1]], 1)
    other = await peer.connect(IN_FLIGHT)
    try:
        assert await other.claim([TOPICS[1]], 2, 100) == []
    finally:
        await other.close()
    assert {first[0].payload, second[0].payload} == {b"one", b"two"}
    await client.ack([*first, *second])


async def test_claims_at_once_never_share_an_item(client: Client) -> None:
    await client.enqueue([Offer(TOPICS[2], bytes([number])) for number in range(200)])
    seen: list[bytes] = []

    async def drain() -> None:
        while len(seen) < 200:
            if held := await client.claim([TOPICS[2]], 7, 100):
                seen.extend(one.payload for one in held)
                await client.ack(held)

    async with asyncio.timeout(PATIENCE_MS / 1_000):
        await asyncio.gather(*[drain() for _ in range(IN_FLIGHT)])
    assert sorted(seen) == [bytes([number]) for number in range(200)]


async def test_a_waiting_claim_gets_the_item_that_comes(client: Client) -> None:
    waiting = asyncio.create_task(client.claim([TOPICS[3]], 1, PATIENCE_MS))
    await asyncio.sleep(0)
    await client.enqueue([Offer(TOPICS[3], b"late")])
    held = await waiting
    assert [one.payload for one in held] == [b"late"]
    await client.ack(held)


async def test_a_nacked_item_comes_again(peer: Adapter, client: Client) -> None:
    await client.enqueue([Offer(TOPICS[4], b"again"), Offer(TOPICS[4], b"done")])
    held = await claim_all(client, [TOPICS[4]], 2)
    done = [one for one in held if one.payload == b"done"]
    await client.nack([one for one in held if one.payload == b"again"], 0)
    await client.ack(done)
    back = await claim_all(client, [TOPICS[4]], 1)
    assert [one.payload for one in back] == [b"again"]
    await client.ack(back)
    assert await client.claim([TOPICS[4]], 1, 50) == []


async def test_the_more_urgent_item_comes_first(peer: Adapter, client: Client) -> None:
    if without(peer, "priority"):
        pytest.skip("has no priorities, and says so")
    await client.enqueue([Offer(TOPICS[5], bytes([priority]), priority) for priority in (5, 1, 9, 0)])
    held = await claim_all(client, [TOPICS[5]], 2) + await claim_all(client, [TOPICS[5]], 2)
    assert [one.payload for one in held] == [b"\x00", b"\x01", b"\x05", b"\x09"]
    await client.ack(held)


async def test_a_delayed_item_comes_when_it_is_due(peer: Adapter, client: Client) -> None:
    if without(peer, "delay"):
        pytest.skip("has no delays, and says so")
    for delay_ms in longer(1_000):
        await client.enqueue([Offer(TOPICS[6], b"later", delay_ms=delay_ms), Offer(TOPICS[6], b"now")])
        now = await claim_all(client, [TOPICS[6]], 1)
        await client.ack(now)
        early = await client.claim([TOPICS[6]], 1, 0)
        if not early:
            break
        await client.ack(early)
    assert [one.payload for one in [*now, *early]] == [b"now"]
    later = await claim_all(client, [TOPICS[6]], 1)
    assert [one.payload for one in later] == [b"later"]
    await client.ack(later)


async def test_an_item_comes_again_when_its_lease_has_ended(
    peer: Adapter, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    if without(peer, "lease"):
        pytest.skip("has no leases, and says so")
    await client.enqueue([Offer(TOPICS[6], b"leased")])
    other = await peer.connect(1)
    with monkeypatch.context() as patch:
        patch.setattr(peer, "lease_ms", SHORT_LEASE_MS)
        short = await peer.connect(1)
    try:
        await claim_all(short, [TOPICS[6]], 1)
        again = await claim_all(other, [TOPICS[6]], 1)
        assert [one.payload for one in again] == [b"leased"]
        await other.ack(again)
    finally:
        await short.close()
        await other.close()


async def test_a_copy_as_client_processes_have_it_reaches_the_same_queue(peer: Adapter, client: Client) -> None:
    copy: Adapter = pickle.loads(pickle.dumps(peer))
    other = await copy.connect(1)
    try:
        await client.enqueue([Offer(TOPICS[3], b"seen")])
        held = await claim_all(other, [TOPICS[3]], 1)
        assert [one.payload for one in held] == [b"seen"]
        await other.ack(held)
    finally:
        await other.close()


async def test_what_was_enqueued_and_not_acked_survives_kill_9(home: tuple[Adapter, Path]) -> None:
    peer, directory = home
    client = await peer.connect(IN_FLIGHT)
    await client.enqueue([Offer(TOPICS[7], bytes([number])) for number in range(10)])
    acked = await claim_all(client, [TOPICS[7]], 4)
    await client.ack(acked)
    if peer.name == "rabbitmq":
        # Nothing answers an ack there; the next answer on the same connection comes after it.
        await client.enqueue([Offer(TOPICS[0], b"marker")])
        await client.ack(await claim_all(client, [TOPICS[0]], 1))
    await client.close()
    for pid in peer.pids().values():
        os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(peer.stop)
    await asyncio.to_thread(peer.start, directory, TOPICS)
    client = await peer.connect(IN_FLIGHT)
    try:
        left = await claim_all(client, [TOPICS[7]], 6)
        payloads = {one.payload for one in [*left, *acked]}
        assert payloads == {bytes([number]) for number in range(10)}
        await client.ack(left)
    finally:
        await client.close()
