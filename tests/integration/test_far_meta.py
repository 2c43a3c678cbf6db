"""Hosts whose meta database is far: a real one behind a proxy.

How soon, and that no host is blind for it, is held in tests/unit/test_host_watch.py, on a clock that tests move.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing

import pytest
from sqlalchemy.engine import make_url
from structlog.testing import capture_logs

from foqs.cluster.members.backends.meta_backend import MetaBackend
from foqs.cluster.members.membership import Membership
from foqs.dev.local_server import LocalServer
from foqs.model.cluster import HostRow
from foqs.model.grants import Ask, Grant
from foqs.model.namespace import NamespaceSettings
from foqs.storage.meta.meta_store import MetaStore
from tests.support.far_server import far_server
from tests.support.waiting import PATIENCE_MS, until

pytestmark = [pytest.mark.database, pytest.mark.slow]


@pytest.fixture(params=[0.12, 0.5])
def far_url(request: pytest.FixtureRequest, meta_url: str, mysql_server: LocalServer) -> Iterator[str]:
    with far_server(str(mysql_server.socket_path), request.param) as server:
        url = make_url(meta_url)
        query = {key: value for key, value in url.query.items() if key != "unix_socket"}
        far = url.set(host="127.0.0.1", port=server.port, query=query)
        yield far.render_as_string(hide_password=False)


@asynccontextmanager
async def member(url: str, name: str) -> AsyncIterator[Membership]:
    loop = asyncio.get_running_loop()
    meta = MetaStore(url, process_id=name)
    beats = MetaStore(url, PATIENCE_MS, name)
    membership = Membership(MetaBackend(meta, beats), meta, HostRow(name, "", 1, 0), {}, loop.time, lambda _: 0)
    await membership.start()
    try:
        yield membership
    finally:
        await membership.stop()


async def test_who_beats_lives_and_who_hangs_is_dead_and_leaves_no_lock(far_url: str, meta_url: str) -> None:
    with closing(MetaStore(meta_url)) as near, capture_logs() as logged:
        near.namespaces.insert("jobs", NamespaceSettings(), 1)
        (number,) = [namespace.number for namespace in near.namespaces.read().namespaces]
        near.quotas.ask("near", {number: Ask(1)})
        hanging = MetaStore(meta_url, process_id="hangs#1")
        async with member(far_url, "one#1") as one, member(far_url, "two#1"):
            near.hosts.beat(HostRow("hangs#1", "", 1, 1))
            # Whom nobody has ever seen is dead as well.
            await until(lambda: one._watch.others_count("one#1") == 2)
            session = hanging._sessions._connect()
            with session.cursor() as cursor:
                cursor.execute("SET SESSION wait_timeout = 600")
                cursor.execute(f"SELECT * FROM quota WHERE namespace = {number} FOR UPDATE")
            assert not isinstance(near.quotas.ask("near", {number: Ask(1)})[number], Grant)
            await until(lambda: one._watch.is_dead("hangs#1", -1.0, asyncio.get_running_loop().time()))
            assert not one._watch.is_dead("two#1", -1.0, asyncio.get_running_loop().time())
            await until(lambda: isinstance(near.quotas.ask("near", {number: Ask(1)})[number], Grant))
            await until(lambda: not one.report.is_blind)
        session._force_close()
        hanging.close()
    told = {event["event"] for event in logged}
    assert {"meta_slow", "meta_sessions_ended"} <= told
    assert not told & {"heartbeat_missed", "host_defect"}
