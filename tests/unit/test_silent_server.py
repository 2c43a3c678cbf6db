"""A server that accepts connections and says nothing, as one that is frozen does."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pymysql
import pytest

from foqs.model import limits
from foqs.model.errors import UnavailableError
from foqs.storage.schema.migrations import SchemaKind, status
from foqs.storage.sessions.session import connect

BOUND_MS = 1_000
PATIENCE_MS = 10 * BOUND_MS


@pytest.fixture
def silent_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(limits, "CONNECT_MS_MAX", BOUND_MS)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"mysql+pymysql://root@127.0.0.1:{listener.getsockname()[1]}/shard_0"


def test_connecting_to_it_ends(silent_url: str) -> None:
    began_s = time.monotonic()
    with pytest.raises(pymysql.err.OperationalError):
        connect(silent_url)
    assert time.monotonic() - began_s < PATIENCE_MS / 1000


def test_asking_for_its_schema_ends(silent_url: str) -> None:
    began_s = time.monotonic()
    with pytest.raises(UnavailableError):
        status(silent_url, SchemaKind.SHARD)
    assert time.monotonic() - began_s < PATIENCE_MS / 1000
