"""Clients with TLS: whom they trust, what they say when they do not, and that they never go on without it."""

from __future__ import annotations

import asyncio
import pickle
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from foqs import AsyncClient, Client
from foqs.cli.main import cli
from foqs.client.client_errors import ClientClosedError, NotSentError
from foqs.client.client_options import Options
from foqs.client.own_tls import OwnTls
from foqs.client.retry import RetryPolicy
from foqs.model import access_tokens
from foqs.model.access import AccessMode
from foqs.model.errors import InvalidArgumentError, PermissionDeniedError, UnavailableError
from foqs.transport.tls.contexts import TlsFiles
from tests.support.certificates import Authority
from tests.support.front_door import World
from tests.support.sign_in_world import mailer
from tests.support.tls_world import tls_world
from tests.support.waiting import eventually

SAN = "foqs://prod/mailer"
ONCE = RetryPolicy(deadline_ms=0)
TOKEN = access_tokens.new_token(bytes(range(access_tokens.RANDOM_BYTES)))
both = pytest.mark.parametrize("make", [Client, AsyncClient])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def files(authority: Authority) -> TlsFiles:
    issued = authority.issue("host", hosts=["127.0.0.1", "queue-a.example"])
    return TlsFiles(cert_file=issued.cert_file, key_file=issued.key_file, ca_file=authority.ca_file, clients="wanted")


async def call(client: Any, verb: str, *arguments: Any, **more: Any) -> Any:
    if isinstance(client, Client):
        return await asyncio.to_thread(getattr(client, verb), *arguments, **more)
    return await getattr(client, verb)(*arguments, **more)


@asynccontextmanager
async def opened(make: Any, w: World, **given: Any) -> AsyncIterator[Any]:
    client = make(f"127.0.0.1:{w.server.port}", retry=ONCE, **given)
    try:
        yield client
    finally:
        await client.close() if make is AsyncClient else await asyncio.to_thread(client.close)


async def stored(client: Any) -> None:
    await call(client, "enqueue", "ns", "topic", b"x" * 10_000)


async def stores(client: Any) -> bool:
    """False if the connection ended meanwhile."""
    try:
        await stored(client)
    except UnavailableError:
        return False
    return True


async def fails(client: Any, said: str) -> None:
    with pytest.raises(NotSentError, match=said):
        await stored(client)


@both
async def test_items_go_both_ways_over_one_connection(make: Any, authority: Authority, files: TlsFiles) -> None:
    async with (
        tls_world(files, is_required=True) as w,
        opened(make, w, tls=True, ca_file=authority.ca_file, connections_max=1) as client,
    ):
        for _ in range(5):
            await stored(client)
            (item,) = await call(client, "dequeue", "ns", "topic", wait_ms=5_000)
            assert item.payload == b"x" * 10_000
            await call(client, "ack", "ns", item)
        assert await call(client, "dequeue", "ns", "topic", wait_ms=1) == []
        assert w.counts.handshakes == ["done"]


@both
async def test_a_client_that_is_closed_in_a_wait_ends_the_wait_of_the_host(
    make: Any, authority: Authority, files: TlsFiles
) -> None:
    async with tls_world(files) as w, opened(make, w, tls=True, ca_file=authority.ca_file) as client:
        waiting = asyncio.create_task(call(client, "dequeue", "ns", "topic", wait_ms=20_000))
        await asyncio.wait_for(w.queue.long_poll_began.wait(), 20)
        await call(client, "close")
        with suppress(ClientClosedError, UnavailableError):
            assert await waiting == []
        await w.until_open(0)


@both
async def test_an_authority_that_is_not_trusted_is_named(
    make: Any, authority: Authority, files: TlsFiles, tmp_path: Path
) -> None:
    foreign = Authority(tmp_path, "foreign")
    async with tls_world(files) as w:
        calls_count = len(w.queue.contexts)
        for given in ({}, {"ca_file": foreign.ca_file}):
            async with opened(make, w, tls=True, **given) as client:
                await fails(client, "is not trusted by .*: give ca_file")
        assert len(w.queue.contexts) == calls_count
        assert "done" not in w.counts.handshakes


@both
async def test_the_name_of_the_host_is_verified(make: Any, authority: Authority, files: TlsFiles) -> None:
    own = authority.issue("other", hosts=["queue-a.example"])
    async with tls_world(replace(files, cert_file=own.cert_file, key_file=own.key_file)) as w:
        async with opened(make, w, tls=True, ca_file=authority.ca_file) as client:
            await fails(client, "is not for '127.0.0.1': give server_name")
        async with opened(make, w, tls=True, ca_file=authority.ca_file, server_name="queue-b.example") as client:
            await fails(client, "is not for 'queue-b.example': give server_name")
        async with opened(make, w, tls=True, ca_file=authority.ca_file, server_name="queue-a.example") as client:
            await stored(client)


@both
async def test_a_client_with_tls_does_not_go_on_with_a_port_that_speaks_none(make: Any, authority: Authority) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        client = make(f"127.0.0.1:{port}", retry=ONCE, tls=True, ca_file=authority.ca_file)
        await fails(client, "the server speaks no TLS on this port")
        await client.close() if make is AsyncClient else client.close()


@both
async def test_a_plain_client_is_told_to_use_tls(make: Any, authority: Authority, files: TlsFiles) -> None:
    async with tls_world(files, is_required=True) as w, opened(make, w) as client:
        with pytest.raises(PermissionDeniedError, match="this port speaks TLS alone"):
            await stored(client)
    issued = authority.issue("proxy", hosts=["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*issued)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0, ssl=context)
    async with server:
        plain = make(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", retry=ONCE)
        with pytest.raises(UnavailableError, match=r"give tls=True|broke before the answer"):
            await stored(plain)
        await plain.close() if make is AsyncClient else plain.close()


@both
async def test_a_certificate_makes_a_client_its_principal(make: Any, authority: Authority, files: TlsFiles) -> None:
    own = authority.issue("mailer", uris=[SAN])
    async with tls_world(files, mode=AccessMode.ENFORCED) as w:
        token = mailer(w)
        w.book.certificate(SAN, "mailer")
        shown = {"cert_file": own.cert_file, "key_file": own.key_file}
        async with opened(make, w, tls=True, ca_file=authority.ca_file, **shown) as client:
            await stored(client)
        async with opened(make, w, tls=True, ca_file=authority.ca_file) as client:
            with pytest.raises(PermissionDeniedError):
                await stored(client)
        async with opened(make, w, tls=True, ca_file=authority.ca_file, token=token) as client:
            await stored(client)


@both
async def test_a_certificate_that_is_missing_or_refused_is_told(
    make: Any, authority: Authority, files: TlsFiles, tmp_path: Path
) -> None:
    foreign = Authority(tmp_path, "foreign").issue("mailer", uris=[SAN])
    async with tls_world(replace(files, clients="required")) as w:
        calls_count = len(w.queue.contexts)
        async with opened(make, w, tls=True, ca_file=authority.ca_file) as client:
            await fails(client, "give cert_file and key_file|closed the connection|reset")
        shown = {"cert_file": foreign.cert_file, "key_file": foreign.key_file}
        async with opened(make, w, tls=True, ca_file=authority.ca_file, **shown) as client:
            await fails(client, "refused the client's certificate|closed the connection|reset")
        assert len(w.queue.contexts) == calls_count


@both
async def test_files_that_are_replaced_hold_for_new_connections_and_broken_ones_change_nothing(
    make: Any, authority: Authority, files: TlsFiles
) -> None:
    own = authority.issue("mailer", uris=["foqs://old"])
    async with tls_world(files, mode=AccessMode.ENFORCED) as w:
        mailer(w)
        w.book.certificate(SAN, "mailer")
        w.book.grant("old", {"ns": "worker"})
        w.book.certificate("foqs://old", "old")
        shown = {"cert_file": own.cert_file, "key_file": own.key_file}
        async with opened(make, w, tls=True, ca_file=authority.ca_file, connections_max=1, **shown) as client:
            await stored(client)
            assert w.queue.contexts[-1].principal.name == "old"
            await asyncio.to_thread(authority.issue, "mailer", uris=[SAN])
            w.book.remove_certificate("foqs://old")
            await w.until_open(0)
            await eventually(lambda: stores(client), bool)
            assert w.queue.contexts[-1].principal.name == "mailer"
            await asyncio.to_thread(Path(own.key_file).write_bytes, b"broken")
            for connection in w.connections():
                connection.close()
            await w.until_open(0)
            await eventually(lambda: stores(client), bool)
            assert w.queue.contexts[-1].principal.name == "mailer"


def test_arguments_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for given, said in (
        ({"ca_file": "x"}, "give tls=True"),
        ({"tls": "yes"}, "tls"),
        ({"tls": True, "key_file": "x"}, "without cert_file"),
        ({"tls": True, "server_name": ""}, "server_name"),
        ({"tls": True, "server_name": "a b"}, "server_name"),
        ({"tls": True, "ca_file": 7}, "ca_file is int"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            Client("127.0.0.1", **given)  # type: ignore[arg-type]
    (tmp_path / "empty").write_bytes(b"")
    for path in (tmp_path / "empty", tmp_path / "missing"):
        with closing(Client("127.0.0.1:1", tls=True, ca_file=path, retry=ONCE)) as client:
            assert isinstance(client, Client)
            refused = pytest.raises((InvalidArgumentError, NotSentError))
            with refused:
                client.enqueue("ns", "t", b"x")


def test_a_token_goes_to_any_machine_over_tls() -> None:
    with pytest.raises(InvalidArgumentError, match="over a plain connection"):
        Client("10.0.0.7", token=TOKEN)
    Client("10.0.0.7", token=TOKEN, tls=True).close()


def test_the_settings_of_tls_can_be_pickled() -> None:
    own = OwnTls(True, ca_file="/etc/ca.pem", server_name="queue-a")
    assert pickle.loads(pickle.dumps(Options(tls=own))).tls == own


async def test_commands_speak_tls_by_their_options_and_variables(
    authority: Authority, files: TlsFiles, tmp_path: Path
) -> None:
    async with tls_world(files, is_required=True, mode=AccessMode.ENFORCED) as w:
        token_file = tmp_path / "token"
        await asyncio.to_thread(token_file.write_text, mailer(w))
        command = ["whoami", "--address", f"127.0.0.1:{w.server.port}", "--token-file", str(token_file)]

        def run(*more: str, **variables: str) -> Any:
            return CliRunner().invoke(cli, [*command, *more], env=variables, prog_name="foqs")

        for done in (
            await asyncio.to_thread(run, "--ca-file", authority.ca_file),
            await asyncio.to_thread(run, FOQS_CA_FILE=authority.ca_file),
            await asyncio.to_thread(run, "--ca-file", authority.ca_file, "--server-name", "queue-a.example"),
        ):
            assert done.exit_code == 0, done.output
            assert "mailer" in done.stdout
        refused = await asyncio.to_thread(run, "--tls")
        assert "give ca_file" in refused.output
        assert refused.exit_code != 0
