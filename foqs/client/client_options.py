"""Settings of a client, validated once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from foqs.client.addresses import AddressBook, parse_addresses
from foqs.client.checks import check_flag, check_whole
from foqs.client.durations import TIMEOUT_MS_MAX
from foqs.client.flows import Terms
from foqs.client.own_tls import OwnTls
from foqs.client.own_token import OwnToken
from foqs.client.owners import Owners
from foqs.client.retry import RetryPolicy
from foqs.model import limits
from foqs.model.errors import InvalidArgumentError

ADDRESS = "127.0.0.1:7600"
TIMEOUT_MS = 10_000
CONNECT_TIMEOUT_MS = 2_000
CONNECTIONS_MAX = 8
ASYNC_CONNECTIONS_MAX = 4
OWNER_CONNECT_MS_MAX = 300
"""Longest wait of a call for a connection to the owner of its shard, in ms; after that any host gets it."""
IDLE_REUSE_MS_MAX = limits.IDLE_MS_MAX // 2
"""Longest idle time of a reusable connection, in ms. The host can close an older one at any moment."""


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of a client, which owns them. See `foqs.Client` for their meaning."""

    addresses: str | Sequence[str] = ADDRESS
    timeout_ms: int = TIMEOUT_MS
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS
    connections_max: int = CONNECTIONS_MAX
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    batch_items_max: int = limits.BATCH_ITEMS_MAX
    idempotent: bool = False
    to_owners: bool = False
    token: OwnToken = field(default_factory=lambda: OwnToken(None, None, without_tls=False))
    tls: OwnTls = field(default_factory=OwnTls)
    clock_ms: Callable[[], int] = monotonic_ms
    random: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        for name in ("timeout_ms", "connect_timeout_ms"):
            check_whole(name, getattr(self, name), 1, TIMEOUT_MS_MAX)
        check_whole("connections_max", self.connections_max, 1)
        check_whole("batch_items_max", self.batch_items_max, 1, limits.BATCH_ITEMS_MAX)
        for name in ("idempotent", "to_owners"):
            check_flag(name, getattr(self, name))
        if not isinstance(self.retry, RetryPolicy):
            raise InvalidArgumentError(f"retry is {type(self.retry).__name__}, not a RetryPolicy")
        self.token.check(parse_addresses(self.addresses) if self.token else [])

    def terms(self) -> Terms:
        """Make the terms of one client, with the state of its addresses."""
        parsed = parse_addresses(self.addresses)
        book = AddressBook(parsed, int(self.random() * len(parsed)))
        owners = Owners() if self.to_owners else None
        return Terms(self.retry, self.timeout_ms, self.clock_ms, self.random, book, owners=owners)
