"""The same over TLS, whose records come in their own pieces and can wait where no poll sees them."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from contextlib import closing
from unittest.mock import patch

import pytest
import uvloop
from sqlalchemy import make_url

from foqs.dev.local_access import TcpListener
from foqs.host.shards.shards import OwnedShard
from foqs.model import limits
from foqs.model.errors import UnavailableError
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.sessions.exchange import run_script
from foqs.storage.sessions.places import place_of
from foqs.storage.sessions.session import connect
from foqs.storage.shard.packs.budget import PackBudget
from foqs.storage.shard.packs.pack_index import PackIndex
from foqs.storage.shard.shard_reader import ShardReader
from tests.support.certificates import write_certificate
from tests.support.databases import prepared_server
from tests.support.faults.programs import free_port
from tests.support.running_host import running_host
from tests.support.waiting import until

pytestmark = pytest.mark.database


@pytest.fixture(scope="module")
def tls_url(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tls")
    write_certificate(directory)
    listener = TcpListener(free_port(), secrets.token_urlsafe())
    options = [
        f"--ssl-ca={directory / 'cert.pem'}",
        f"--ssl-cert={directory / 'cert.pem'}",
        f"--ssl-key={directory / 'key.pem'}",
    ]
    with prepared_server(directory / "server", *options, listener=listener) as server:
        server.create_database("foqs_tls")
        yield f"{listener.url('foqs_tls')}?ssl_ca={directory / 'cert.pem'}"


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_script_of_megabytes_both_ways_is_whole(tls_url, run):
    payload = "7a" * limits.MIB
    statements = [f"INSERT INTO t VALUES ({n}, x'{payload}')" for n in range(5)]
    with closing(connect(tls_url)) as session:
        assert isinstance(session._sock, ssl.SSLSocket)
        create = "CREATE TEMPORARY TABLE t (id INT PRIMARY KEY, b MEDIUMBLOB)"
        results = run(run_script(session, [create, *statements, "SELECT id, b FROM t", "SELECT 1"]))
        assert results == [[]] * 6 + [[(n, bytes.fromhex(payload)) for n in range(5)], [(1,)]]
        with session.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM t")
            assert cursor.fetchall() == ((5,),)


def test_new_sessions_are_opened_with_the_tls_options_that_were_given_last(tls_url, tmp_path):
    write_certificate(tmp_path)
    strange = f"{tls_url.partition('?')[0]}?ssl_ca={tmp_path / 'cert.pem'}"
    reader, meta = ShardReader(0, strange, PackIndex(PackBudget(0))), MetaStore(strange)
    try:
        with pytest.raises(UnavailableError, match="certificate"):
            reader.expired_page(0, 0)()
        with pytest.raises(UnavailableError, match="certificate"):
            meta.namespaces.read()
        reader.use_url(tls_url)
        meta.use_url(tls_url)
        with pytest.raises(UnavailableError, match="doesn't exist"):  # The server is reached; it has no such table.
            reader.expired_page(0, 0)()
        with pytest.raises(UnavailableError, match="doesn't exist"):
            meta.namespaces.read()
    finally:
        reader.close()
        meta.close()


async def test_a_reload_reaches_shards_that_are_opened_by_the_login_of_all(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    login = "mysql://root@localhost"
    with closing(MetaStore(meta_url)) as meta:
        meta.shards.add(0, place_of(shard_urls[0]), "")
    async with running_host(meta_url, {}, name="h", shard_login=login) as running:
        host = running.host
        await until(lambda: host.owned_count == 1)
        wanted = host._config.model_copy(update={"shard_login": f"{login}?ssl_cipher=DEFAULT"})
        with patch.object(OwnedShard, "use_url") as use_url:
            host.use_urls(wanted)
        (url,) = use_url.call_args.args
        assert make_url(url).query["ssl_cipher"] == "DEFAULT"
        assert place_of(url) == place_of(shard_urls[0])
