"""Sessions with a server: who opens one that cannot be used closes it, and who ends one may meet one that is ending."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pymysql
import pytest

from foqs.storage.meta import meta_sessions
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.sessions import session
from foqs.storage.shard.packs.budget import PackBudget
from foqs.storage.shard.packs.pack_index import PackIndex
from foqs.storage.shard.shard_reader import ShardReader

URL = "mysql+pymysql://root@127.0.0.1/foqs_0"


def test_a_session_that_cannot_be_set_up_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a server that went away in between: else it would stay open for as long as the error is kept."""
    opened = Mock(get_server_info=lambda: "8.0.36")
    opened.cursor.side_effect = pymysql.err.OperationalError(1193, "Unknown system variable")
    monkeypatch.setattr(session, "Session", lambda **_: opened)
    with pytest.raises(pymysql.err.OperationalError):
        session.connect(URL)
    opened._force_close.assert_called_once()


class EndingSession:
    """Its socket is gone a moment after it was there."""

    def __init__(self) -> None:
        self._sockets: list[Any] = [None, Mock()]

    @property
    def _sock(self) -> Any:
        return self._sockets.pop() if self._sockets else None


def test_a_read_is_interrupted_whose_thread_closes_the_session_just_then() -> None:
    reader = ShardReader(0, URL, PackIndex(PackBudget(0)))
    reader._session = EndingSession()
    reader.interrupt()


@pytest.mark.parametrize(("option", "expected_s"), [("", 3), ("?connect_timeout=1", 1), ("?connect_timeout=5", 3)])
def test_the_url_of_the_meta_database_says_how_long_to_wait_for_its_server(
    monkeypatch: pytest.MonkeyPatch, option: str, expected_s: float
) -> None:
    """But no longer than for a statement."""
    arguments: dict[str, Any] = {}

    def open_none(**given: Any) -> None:
        arguments.update(given)
        raise pymysql.err.OperationalError(2003, "Can't connect")

    monkeypatch.setattr(meta_sessions, "Session", open_none)
    with pytest.raises(pymysql.err.OperationalError):
        MetaStore(URL + option)._sessions._connect()
    assert arguments["connect_timeout"] == expected_s
