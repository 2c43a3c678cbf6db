"""The same over TLS, whose records come in their own pieces and can wait where no poll sees them."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from contextlib import closing

import pytest
import uvloop
from sqlalchemy.exc import ProgrammingError

from foqs.dev.local_access import TcpListener
from foqs.model import limits
from foqs.model.errors import UnavailableError
from foqs.storage.exchange import run_script
from foqs.storage.meta import MetaStore
from foqs.storage.packs.budget import PackBudget
from foqs.storage.packs.index import PackIndex
from foqs.storage.session import connect
from foqs.storage.shard_reader import ShardReader
from tests.support.certificates import write_certificate
from tests.support.databases import prepared_server
from tests.support.faults.programs import free_port

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
            meta.list_namespaces()
        reader.use_url(tls_url)
        meta.use_url(tls_url)
        with pytest.raises(UnavailableError, match="doesn't exist"):  # The server is reached; it has no such table.
            reader.expired_page(0, 0)()
        with pytest.raises(ProgrammingError, match="doesn't exist"):
            meta.list_namespaces()
    finally:
        reader.close()
        meta.close()
