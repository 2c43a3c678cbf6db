"""No session with a shard's database is kept for long by a host that hangs."""

from __future__ import annotations

from contextlib import closing

import pytest

from foqs.dev.local_server import LocalServer
from foqs.model import limits
from foqs.storage.sessions.session import connect
from foqs.storage.shard.seen_log import SeenLogReader
from foqs.storage.shard.slot_source import SlotSource

pytestmark = pytest.mark.database


def silence_s(session: object) -> int:
    with session.cursor() as cursor:  # type: ignore[attr-defined]
        cursor.execute("SELECT @@SESSION.wait_timeout")
        return int(cursor.fetchone()[0])


def test_sessions_of_readers_and_snapshots_are_ended_when_they_are_silent(shard_urls: dict[int, str]) -> None:
    with closing(connect(shard_urls[0])) as reader:
        assert silence_s(reader) == limits.OWNER_SILENT_MS_MAX // 1000 == 30
    with closing(connect(shard_urls[0], limits.COUNT_MS_MAX, limits.COUNT_MS_MAX)) as snapshot:
        assert silence_s(snapshot) == limits.COUNT_MS_MAX // 1000 == 600


def test_a_reader_whose_session_was_ended_while_it_was_idle_goes_on_with_another(
    shard_urls: dict[int, str], mysql_server: LocalServer
) -> None:
    log = SeenLogReader(lambda: shard_urls[0], 0)
    assert log.read(1, 0, 10) == []
    with closing(mysql_server.connect()) as root, root.cursor() as cursor:
        cursor.execute(f"KILL {log._session.thread_id()}")
    assert log.read(1, 0, 10) == []
    log.close()


def test_so_does_who_reads_slots_of_another_shard(
    shard_urls: dict[int, str], mysql_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SlotSource(0, shard_urls[0])
    monkeypatch.setattr(source, "_check_shard", lambda: None)
    assert source._rows("SELECT 1")[0][0] == 1
    with closing(mysql_server.connect()) as root, root.cursor() as cursor:
        cursor.execute(f"KILL {source._session.thread_id()}")
    assert source._rows("SELECT 1")[0][0] == 1
    source.close()
