"""Quotas on a real meta database: the rows of books, and two hosts that share one quota."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import text

from foqs import NewItem, RateLimitedError
from foqs.host.admission.account import WAIT_MS_MAX
from foqs.model import grants
from foqs.model.errors import UnavailableError
from foqs.model.grants import Ask, Grant, GrantBook
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.storage.meta.meta_store import MetaStore
from foqs.testing.fake_meta import memory_meta
from tests.support.running_host import has_read, running_host
from tests.support.waiting import eventually, until

LIMIT = 1_000


@pytest.fixture
def meta(meta_url: str) -> Iterator[MetaStore]:
    with closing(MetaStore(meta_url)) as store:
        yield store


@pytest.fixture
def namespace(meta: MetaStore) -> Namespace:
    return meta.namespaces.insert("jobs", NamespaceSettings(enqueues_per_minute_max=LIMIT), 1)


def books_of(meta: MetaStore) -> dict[int, bytes]:
    with meta._sessions.transaction() as connection:
        return {row.namespace: row.book for row in connection.execute(text("SELECT namespace, book FROM quota"))}


def granted(answer: Grant | UnavailableError) -> Grant:
    assert isinstance(answer, Grant), answer
    return answer


def test_hosts_get_no_more_than_the_limit_among_them(meta: MetaStore, namespace: Namespace) -> None:
    number = namespace.number
    first = granted(meta.quotas.ask("a", {number: Ask(600)})[number])
    second = granted(meta.quotas.ask("b", {number: Ask(600)})[number])
    assert (first.granted_count, second.granted_count, second.limit) == (600, 400, LIMIT)
    assert first.now_ms <= second.now_ms
    given_back = Ask(600, era=first.era, returned=[(first.date_ms, 50)])
    assert granted(meta.quotas.ask("a", {number: given_back})[number]).granted_count == 50
    meta.namespaces.update("jobs", NamespaceSettings(enqueues_per_minute_max=LIMIT + 5))
    assert granted(meta.quotas.ask("b", {number: Ask(600)})[number]).granted_count == 5


def test_asks_of_many_hosts_at_the_same_time_hold_up_nobody_and_grant_no_more_than_the_limit(
    meta: MetaStore, namespace: Namespace
) -> None:
    other = meta.namespaces.insert("other", NamespaceSettings(enqueues_per_minute_max=LIMIT), 1)
    numbers = [namespace.number, other.number]

    def ask(host: int) -> list[int]:
        counts = dict.fromkeys(numbers if host % 2 else numbers[::-1], 0)
        left = set(numbers)
        while left:
            for number, answer in meta.quotas.ask(f"h{host}", {number: Ask(30) for number in left}).items():
                if isinstance(answer, Grant):  # Else the book is another host's at the moment.
                    counts[number] = answer.granted_count
                    left.discard(number)
        return [counts[number] for number in numbers]

    with ThreadPoolExecutor(4) as threads:
        granted = list(threads.map(ask, range(60)))
    assert [sum(counts) for counts in zip(*granted, strict=True)] == [LIMIT, LIMIT]
    assert [GrantBook.unpack(book).count for book in books_of(meta).values()] == [LIMIT, LIMIT]


def test_a_namespace_that_is_gone_has_no_book_and_gets_none(meta: MetaStore, namespace: Namespace) -> None:
    kept = meta.namespaces.insert("kept", NamespaceSettings(), 1)
    asks = {namespace.number: Ask(1), kept.number: Ask(1)}
    assert meta.quotas.ask("a", asks).keys() == asks.keys()
    assert meta.namespaces.finish_deletion(meta.namespaces.begin_deletion("jobs"), "jobs") == []
    assert list(books_of(meta)) == [kept.number]
    assert list(meta.quotas.ask("a", asks)) == [kept.number]
    assert list(books_of(meta)) == [kept.number]


def test_a_book_of_a_later_version_is_left_as_it_is(meta: MetaStore, namespace: Namespace) -> None:
    meta.quotas.ask("a", {namespace.number: Ask(1)})
    with meta._sessions.transaction() as connection:
        connection.execute(text("UPDATE quota SET book = 'Xnew'"))
    kept = meta.namespaces.insert("kept", NamespaceSettings(), 1)
    answers = meta.quotas.ask("a", {namespace.number: Ask(1), kept.number: Ask(1)})
    assert "are of another version of foqs" in str(answers[namespace.number])
    assert granted(answers[kept.number]).granted_count == 1, "and holds up no other book"
    assert books_of(meta)[namespace.number] == b"Xnew"


def test_the_fake_database_does_the_same(meta: MetaStore, namespace: Namespace) -> None:
    fake = memory_meta(lambda: 1_700_000_000_000)
    fake.reach().tables.namespaces["jobs"] = namespace
    asks = [Ask(300), Ask(900), Ask(0), Ask(5, 10), Ask(1, was_away=True), Ask(1)]
    answers = [[store.quotas.ask("a", {namespace.number: ask, 99: ask}) for ask in asks] for store in (meta, fake)]
    shown = [
        [
            {
                number: (granted(one).granted_count, granted(one).excess, granted(one).limit, granted(one).is_scarce)
                for number, one in answer.items()
            }
            for answer in of
        ]
        for of in answers
    ]
    assert shown[0] == shown[1]


async def test_two_hosts_together_let_in_the_quota_and_no_more(meta_url: str, shard_urls: dict[int, str]) -> None:
    """Each has shards of its own. Callers come to both at the same time, again and again."""
    ids = sorted(shard_urls)
    half = {shard_id: shard_urls[shard_id] for shard_id in ids[: len(ids) // 2]}
    rest = {shard_id: shard_urls[shard_id] for shard_id in ids[len(ids) // 2 :]}
    async with (
        running_host(meta_url, half, name="a") as first,
        running_host(meta_url, rest, name="b", namespace=None) as second,
    ):
        await first.admin.create_namespace("small", enqueues_per_minute_max=500)
        await until(lambda: "small" in second.host._namespaces.view.by_name)
        told: list[int] = []

        async def send(host: Any, count: int) -> int:
            try:
                return len((await host.client.enqueue_many("small", [NewItem("t", b"x")] * count)).ids)
            except RateLimitedError as error:
                told.append(error.retry_after_ms or 0)
                return 0

        let_in = 0
        for _ in range(100):
            let_in += sum(await asyncio.gather(*[send(host, 10) for host in (first, second) for _ in range(4)]))
            if let_in >= 500:
                break
        told.clear()
        assert await send(first, 1) + await send(second, 1) == 0
        assert let_in == 500, "all of it, however it came to the hosts"
        assert first.items_stored() + second.items_stored() == 500
        assert 0 < first.items_stored() < 500
        assert len(told) == 2
        assert all(0 < wait_ms <= grants.QUOTA_WINDOW_MS + grants.VALID_MS for wait_ms in told)
        # A higher limit holds soon on both.
        await second.admin.update_namespace("small", enqueues_per_minute_max=520)
        for host in (first, second):
            await has_read(host)
            assert limit_of(host) == 520, "and they read twice a second"
            # A call whose tokens come too late on a busy machine is refused as a whole.
            await eventually(lambda host=host: send(host, 10), lambda count: count == 10)
        assert await send(first, 1) == 0


async def test_without_the_meta_database_a_host_that_is_alone_lets_in_its_quota(
    meta_url, shard_urls, monkeypatch
) -> None:
    async with running_host(meta_url, shard_urls) as host:
        await host.admin.create_namespace("small", enqueues_per_minute_max=20)
        await host.client.enqueue_many("small", [NewItem("t", b"x")] * 5)

        def fails(*_: object) -> None:
            raise UnavailableError("the meta database does not answer")

        monkeypatch.setattr(host.host._quotas, "_books", type("Away", (), {"ask": staticmethod(fails)}))
        await host.client.enqueue_many("small", [NewItem("t", b"x")] * 15)
        assert host.host._quotas.is_away
        with pytest.raises(RateLimitedError):
            await host.client.enqueue("small", "t", b"x")
        assert host.items_stored() == 20


async def test_a_meta_database_that_hangs_holds_no_enqueue_up_for_long(meta_url, shard_urls, monkeypatch) -> None:
    hung = threading.Event()
    async with running_host(meta_url, shard_urls) as host:
        await host.admin.create_namespace("small", enqueues_per_minute_max=20)

        def hangs(*_: object) -> dict[int, object]:
            hung.wait()
            return {}

        monkeypatch.setattr(host.host._quotas, "_books", type("Hung", (), {"ask": staticmethod(hangs)}))
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            await host.client.enqueue("small", "t", b"x")
            assert loop.time() - began_s >= WAIT_MS_MAX / 1000
            await until(lambda: host.host._quotas.is_away)
            for _ in range(5):
                await host.client.enqueue("small", "t", b"x")
            assert host.host._quotas.waited_total <= 2, "once it is known to be away nobody waits"
        finally:
            hung.set()


def limit_of(host: Any) -> int:
    limit: int = host.host._namespaces.view.by_name["small"].settings.enqueues_per_minute_max
    return limit
