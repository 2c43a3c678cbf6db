"""A caller that may add shards has hosts look what listens where: it learns nothing, by text, by code or by time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from foqs.host.registry.meta_calls import MetaCalls
from foqs.host.verbs import place_check
from foqs.host.verbs.place_check import NotOpenedError, PlaceCheck
from foqs.model.errors import InvalidArgumentError
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.sessions.session import Session, session_arguments
from tests.support.false_server import FalseServer, Talk
from tests.support.place_databases import databases
from tests.support.waiting import PATIENCE_S

ACCESS_DENIED = b"\xff\x15\x04#28000Access denied for user 'foqs'@'10.0.0.9'"
UNKNOWN_DATABASE = b"\xff\x19\x04#42000Unknown database 'd'"
TOO_MANY = b"\xff\x10\x04Too many connections"


@contextmanager
def silent() -> Iterator[int]:
    """A port that takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@contextmanager
def closed() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    yield port


@contextmanager
def web() -> Iterator[int]:
    """A port of something that is no database, and greets."""
    with FalseServer(lambda talk: talk.sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as server:
        yield server.port


def answering(packet: bytes) -> Any:
    """A database that refuses in these words, after the login."""

    def script(talk: Talk) -> None:
        talk.greet("mysql_native_password")
        talk.say(packet)

    @contextmanager
    def server() -> Iterator[int]:
        with FalseServer(script) as one:
            yield one.port

    return server


def opened(place: str) -> None:
    """Open the database as a host does: its words are for the log."""
    port = int(place.rpartition(":")[2].partition("/")[0])
    arguments = session_arguments(f"mysql+pymysql://foqs:geheimnis@127.0.0.1:{port}/d")
    try:
        Session(**arguments | {"connect_timeout": 1, "read_timeout": 1}).close()
    except Exception as error:
        raise NotOpenedError(str(error)) from None


KINDS = {
    "closed": closed, "silent": silent, "web": web, "denied": answering(ACCESS_DENIED),
    "unknown": answering(UNKNOWN_DATABASE), "full": answering(TOO_MANY),
}  # fmt: skip


async def test_a_shard_that_is_added_tells_nothing_of_what_listens_where() -> None:
    """Whatever is there, and however it answers: one text, one code, one time."""
    texts, logged, now_s = set[str](), set[str](), 0.0
    waits_s: list[tuple[float, float]] = []
    """How long each caller was made to wait, and until when after its call."""
    calls = MetaCalls(cast(MetaStore, SimpleNamespace(shards=SimpleNamespace(read_all=list))))
    loop = asyncio.get_running_loop()

    async def sleep(seconds: float) -> None:
        waits_s.append((seconds, loop.time() - now_s + seconds))

    try:
        with ExitStack() as stack:
            stack.enter_context(patch.object(place_check.asyncio, "sleep", sleep))
            stack.enter_context(patch.object(place_check, "PLACE_CHECK_MS", int(PATIENCE_S * 1000)))
            check = PlaceCheck(calls, databases(check_database=lambda shard_id, place: opened(place)), "host-1")
            for kind in KINDS.values():
                port = stack.enter_context(kind())
                place, now_s = f"mysql://127.0.0.1:{port}/d", loop.time()
                with capture_logs() as logs, pytest.raises(InvalidArgumentError) as refused:
                    await check.check(7, place)
                texts.add(str(refused.value).replace(str(port), "PORT"))
                assert (refused.value.retry_after_ms, refused.value.retryable) == (None, False)
                logged.update(str(log["error"]) for log in logs)
        assert texts == {
            "the database of shard 7 at mysql://127.0.0.1:PORT/d could not be opened: nothing was done, see the "
            "log of host host-1"
        }
        assert len(waits_s) == len(KINDS)
        assert all(seconds <= PATIENCE_S <= until_s for seconds, until_s in waits_s), "each until the same time"
        assert len(logged) == len(KINDS), "operators are told the reason"
        assert "geheimnis" not in str(logged)
    finally:
        await calls.stop()
