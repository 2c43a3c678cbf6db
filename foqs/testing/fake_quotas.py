"""The books of quotas of a meta database in memory: foqs.storage.meta_quotas on a dictionary."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from foqs.model.grants import Ask, Grant
from foqs.storage.meta_quotas import number_of, settle


class FakeQuotas(ABC):
    """The database for one host. A subclass says where the books are, and what the limits are."""

    @property
    @abstractmethod
    def _books(self) -> dict[int, bytes]:
        """The packed books. Raises UnavailableError while the database is away."""

    @abstractmethod
    def _limit_of(self, namespace: int) -> int | None:
        """The quota of a namespace, unless it is gone."""

    @abstractmethod
    def _now_ms(self) -> int:
        """The database's clock."""

    def ask_quotas(self, host_name: str, asks: Mapping[int, Ask]) -> dict[int, Grant]:
        books, now_ms = self._books, self._now_ms()
        answers = {}
        for number, ask in asks.items():
            limit = self._limit_of(number)
            if limit is not None:
                packed = books.get(number, b"")
                answers[number], books[number] = settle(packed, number_of(host_name), ask, limit, now_ms)
        return answers
