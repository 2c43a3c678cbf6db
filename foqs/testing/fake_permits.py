"""The books of permits of a meta database in memory: foqs.storage.meta.meta_permits on a dictionary."""

from __future__ import annotations

from collections.abc import Mapping

from foqs.model.cluster import ShardUse
from foqs.model.permit_book import PermitAnswer, PermitAsk, PermitBook, PermitFacts
from foqs.model.stocks import Topic
from foqs.testing.fake_meta_tables import Reach


class FakePermits:
    """The table of books."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    def ask(self, asks: Mapping[Topic, PermitAsk]) -> dict[Topic, PermitAnswer]:
        database = self._reach()
        books, answers = database.tables.permits, dict[Topic, PermitAnswer]()
        tables = database.tables
        removed = {row.shard_id: row.epoch for row in tables.cluster.shards.values() if row.use is ShardUse.REMOVED}
        versions = {namespace.number: namespace.policies_version for namespace in tables.namespaces.values()}
        for topic, ask in asks.items():
            book = PermitBook.unpack(books.get(topic, b""))
            answers[topic] = book.answer(topic[0], ask, database.now_ms(), PermitFacts(versions, removed))
            books[topic] = book.pack()
            if not book.shards:
                del books[topic]
        return answers

    def waited(self) -> tuple[dict[Topic, PermitBook], int]:
        database = self._reach()
        now_ms = database.now_ms()
        found = {topic: PermitBook.unpack(packed) for topic, packed in database.tables.permits.items()}
        return {topic: book for topic, book in found.items() if book.waited_until_ms() > now_ms}, now_ms
