# Generated from foqs/client/aio/base.py by scripts/generate_sync.py: edit that one.
"""The base class of the clients of both services."""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from foqs.client import client_options
from foqs.client.client_options import Options
from foqs.client.context_file import ContextFile
from foqs.client.durations import duration_ms, duration_or
from foqs.client.flows import Flow, Send, Terms
from foqs.client.own_tls import CertificateFile, OwnTls
from foqs.client.own_token import OwnToken, TokenFile
from foqs.client.retry import RetryPolicy
from foqs.client.sync.concurrency import Home
from foqs.client.sync.connections import ConnectionPool
from foqs.model import limits
from foqs.model.errors import FoqsError

T = TypeVar("T")


class BaseClient:
    """The connections of a client, and the execution of verbs; `Client` and `AdminClient` add the verbs.

    It owns the pool of connections. Its arguments are described at `Client`.
    """

    def __init__(
        self,
        addresses: str | Sequence[str] = client_options.ADDRESS,
        *,
        timeout_ms: int | None = None,
        timeout: timedelta | None = None,
        connect_timeout_ms: int | None = None,
        connect_timeout: timedelta | None = None,
        connections_max: int = client_options.CONNECTIONS_MAX,
        retry: RetryPolicy | None = None,
        batch_items_max: int = limits.BATCH_ITEMS_MAX,
        idempotent: bool = False,
        to_owners: bool = False,
        token: str | None = None,
        token_file: TokenFile | None = None,
        tokens_without_tls: bool = False,
        tls: bool = False,
        ca_file: CertificateFile | None = None,
        server_name: str | None = None,
        cert_file: CertificateFile | None = None,
        key_file: CertificateFile | None = None,
        clock_ms: Callable[[], int] = client_options.monotonic_ms,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        own_tls = OwnTls(tls, ca_file=ca_file, server_name=server_name, cert_file=cert_file, key_file=key_file)
        self.options = Options(
            addresses=addresses,
            timeout_ms=duration_or("timeout_ms", timeout_ms, timeout, client_options.TIMEOUT_MS),
            connect_timeout_ms=duration_or(
                "connect_timeout_ms", connect_timeout_ms, connect_timeout, client_options.CONNECT_TIMEOUT_MS
            ),
            connections_max=connections_max,
            retry=RetryPolicy() if retry is None else retry,
            batch_items_max=batch_items_max,
            idempotent=idempotent,
            to_owners=to_owners,
            token=OwnToken(token, token_file, without_tls=tokens_without_tls, over_tls=bool(own_tls)),
            tls=own_tls,
            clock_ms=clock_ms,
            random=random,
        )
        self._terms = self.options.terms()
        self._home = Home()
        self._pool = self._make_pool()
        self._pool.late.run = self._run
        self._prepare()

    @classmethod
    def from_context(cls, name: str | None = None, **arguments: Any) -> Self:
        """Make a client by a context of the file that the commands use, ~/.config/foqs/contexts.toml.

        name (None): the context; the default one if none is given. arguments: those of the client, in the place of
        those of the context. A given token or certificate replaces that of the context.
        FOQS_CONTEXTS_FILE can name another file. No other variable counts, and a client that is made in another way
        reads none. Raises InvalidArgumentError for an unknown context and for a file that cannot be used.
        """
        return cls(**ContextFile.of_user().read().named(name).arguments(arguments))

    def _make_pool(self) -> ConnectionPool:
        """Create the connections; `foqs.testing` replaces them."""
        return ConnectionPool(self.options, self._terms.book)

    def _prepare(self) -> None:
        """Create the other parts of a client."""

    def _within(self, deadline_ms: int | None, deadline: timedelta | None) -> Terms:
        """Return the terms of a call, with its deadline if one is given.

        Raises ClientClosedError if the client cannot be used here.
        """
        self._home.check()
        if deadline_ms is None and deadline is None:
            return self._terms
        return self._terms.within(duration_ms("deadline_ms", deadline_ms, deadline))

    def _run(self, flow: Flow[T]) -> T:
        """Execute the steps of a verb. Raises ClientClosedError if the client is closed meanwhile."""
        try:
            step = next(flow)
            while True:
                if isinstance(step, Send):
                    try:
                        response = self._pool.exchange(step)
                    except FoqsError as error:
                        step = flow.throw(error)
                    else:
                        step = flow.send(response)
                else:
                    self._pool.pause(step.pause_ms)
                    step = next(flow)
        except StopIteration as end:
            return cast(T, end.value)
        finally:
            flow.close()

    def close(self) -> None:
        """Close every connection. Calls in flight fail, later ones raise ClientClosedError. Safe to repeat.

        Items in transit to waiting calls are given back first, which takes up to 1 s.
        """
        if not self._pool.closed.is_set():
            self._home.check_end()
            self._pool.give_up_waits()
            self._pool.late.close()
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
