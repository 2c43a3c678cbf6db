"""Membership by a real ZooKeeper over TLS, with a login, and nodes that nobody else can use."""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE

from foqs.cluster.members.backends import zookeeper_backend, zookeeper_url
from foqs.cluster.members.backends.zookeeper_backend import ZookeeperBackend
from foqs.cluster.members.backends.zookeeper_tls import HiddenText, TlsHandler
from foqs.cluster.members.backends.zookeeper_url import NO_ACCESS, ZookeeperAccess
from foqs.config import ConfigError, load_config
from foqs.model.cluster import HostRow
from foqs.model.errors import InvalidArgumentError, UnavailableError
from foqs.model.secret import Secret
from foqs.storage.meta.meta_store import MetaStore
from tests.support.certificates import Authority
from tests.support.false_server import FalseServer, Talk
from tests.support.running_host import running_host
from tests.support.waiting import PATIENCE_S, until, until_given, until_true
from tests.support.zookeeper import ZookeeperServer

pytestmark = pytest.mark.database
LOGIN = "hosts:planted-word"
_paths = count()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    issued = authority.issue("zookeeper", hosts=["127.0.0.1"])
    with ZookeeperServer(tmp_path_factory.mktemp("zookeeper-tls"), issued) as server:
        yield server


@pytest.fixture(scope="module")
def strict_server(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    """A server that wants certificates of its clients."""
    issued = authority.issue("strict", hosts=["127.0.0.1"])
    with ZookeeperServer(tmp_path_factory.mktemp("zookeeper-strict"), issued, authority.ca_file) as server:
        yield server


class Backends:
    """Makes backends of hosts that are closed at the end."""

    def __init__(self, meta_url: str) -> None:
        self._meta_url = meta_url
        self._made: list[Any] = []

    def make(self, url: str, access: ZookeeperAccess, clock: Callable[[], float] = lambda: 0.0) -> ZookeeperBackend:
        meta = MetaStore(self._meta_url)
        backend = ZookeeperBackend(zookeeper_url.parse(url), "foqs", meta, clock, access)
        self._made += [backend, meta]
        return backend

    def close(self) -> None:
        for one in self._made:
            one.close()


@pytest.fixture
def backends(meta_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backends]:
    monkeypatch.setattr(zookeeper_backend, "ROUND_MS_MAX", 20_000)
    with closing(Backends(meta_url)) as backends:
        yield backends


def row(name: str) -> HostRow:
    return HostRow(name, "127.0.0.1:7600", 17, 1)


def access(authority: Authority, login: str = "", **files: str) -> ZookeeperAccess:
    return ZookeeperAccess(
        ca_file=authority.ca_file, login=(lambda: Secret(login.encode())) if login else None, **files
    )


def path() -> str:
    return f"/tls-{next(_paths)}"


def test_hosts_find_each_other_over_verified_tls(
    backends: Backends, server: ZookeeperServer, authority: Authority
) -> None:
    """With as many hosts as make answers share a record of TLS."""
    url = server.tls_url(path())
    made = [backends.make(url, access(authority), time.monotonic) for _ in range(6)]
    rows = [row(f"host-{number}#1") for number in range(6)]
    for backend, of_host in zip(made, rows, strict=True):
        backend.join(of_host)

    def see_all() -> bool:
        return [len(backend.beat(of_host)) for backend, of_host in zip(made, rows, strict=True)] == [6] * 6

    # On a machine that stalls sessions expire, and a later beat makes their nodes anew.
    until_true(lambda: until_given(see_all, UnavailableError))


def test_nodes_of_hosts_with_a_login_are_theirs_alone(
    backends: Backends, server: ZookeeperServer, authority: Authority
) -> None:
    at = path()
    url = server.tls_url(at)
    one, two = (backends.make(url, access(authority, LOGIN)) for _ in range(2))
    for name, backend in (("one#1", one), ("two#1", two)):
        backend.join(row(name))
        backend.beat(row(name))
    assert {found.id for found in one.beat(row("one#1"))} == {"one#1", "two#1"}
    stranger = KazooClient(f"127.0.0.1:{server.port}")
    stranger.start()
    try:
        stranger.add_auth("digest", "hosts:wrong")
        node = f"{at}/foqs/hosts/one#1"
        for attempt in (
            lambda: stranger.get(node), lambda: stranger.set(node, b"{}"), lambda: stranger.delete(node),
            lambda: stranger.create(f"{at}/foqs/hosts/forged#1", b"{}"),
            lambda: stranger.get_children(f"{at}/foqs/hosts"),
            lambda: stranger.set_acls(node, OPEN_ACL_UNSAFE),
        ):  # fmt: skip
            with pytest.raises(NoAuthError):
                attempt()
    finally:
        stranger.stop()
        stranger.close()
    # A host that ends in order leaves a mark that the others can remove.
    two.leave(row("two#1"))
    assert {found.id for found in one.beat(row("one#1"))} == {"one#1"}


async def refused(backends: Backends, url: str, given: ZookeeperAccess, told: str) -> None:
    client = backends.make(url, given)._connect()
    try:
        client.start_async()
        await until(lambda: re.search(told, client.handler.problem) is not None)
        assert not client.connected
    finally:
        client.stop()
        client.close()


def test_the_reason_is_in_the_error_of_a_start(
    backends: Backends, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = MagicMock()
    client.start_async.return_value.wait.return_value = False
    client.handler.problem = "certificate verify failed"
    monkeypatch.setattr(ZookeeperBackend, "_connect", lambda _: client)
    with pytest.raises(UnavailableError, match=r"does not answer within 10 s: .* \(certificate verify failed\)"):
        backends.make("zookeeper+tls://zk-1", access(authority)).join(row("one#1"))


async def test_an_ensemble_of_another_authority_is_none(
    backends: Backends, server: ZookeeperServer, tmp_path: Path
) -> None:
    for given in (access(Authority(tmp_path, "another"), LOGIN), NO_ACCESS):
        await refused(backends, server.tls_url(path()), given, "certificate verify failed")


async def test_an_ensemble_of_another_name_is_none(
    backends: Backends, server: ZookeeperServer, authority: Authority
) -> None:
    url = server.tls_url(path(), "localhost")
    await refused(backends, url, access(authority, LOGIN), "(?i)hostname mismatch")


async def test_an_ensemble_without_tls_is_none_and_hears_no_login(
    backends: Backends, server: ZookeeperServer, authority: Authority
) -> None:
    heard: list[bytes] = []

    def listen(talk: Talk) -> None:
        heard.append(talk.sock.recv(65_536))

    with FalseServer(listen) as false_server:
        url = f"zookeeper+tls://127.0.0.1:{false_server.port}/x"
        await refused(backends, url, access(authority, LOGIN), ".")
    assert heard
    assert all(said.startswith(b"\x16\x03") or not said for said in heard), "nothing but the begin of a handshake"
    plain_port = server.url().rpartition(":")[2]
    await refused(backends, f"zookeeper+tls://127.0.0.1:{plain_port}/x", access(authority), ".")


async def test_a_certificate_is_shown_where_the_ensemble_wants_one(
    backends: Backends, strict_server: ZookeeperServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued = authority.issue("host-1", hosts=["host-1.example"])
    url = strict_server.tls_url(path())
    backend = backends.make(url, access(authority, cert_file=issued.cert_file, key_file=issued.key_file))
    backend.join(row("one#1"))
    assert [found.id for found in backend.beat(row("one#1"))] == ["one#1"]
    missing = access(authority, cert_file=f"{issued.cert_file}.none", key_file=issued.key_file)
    await refused(backends, url, missing, "No such file")
    monkeypatch.setattr(zookeeper_backend, "CONNECT_MS_MAX", 1_000)
    with pytest.raises(UnavailableError, match="does not answer within"):
        backends.make(url, access(authority)).join(row("two#1"))


async def test_a_host_runs_by_it_and_shows_its_login_nowhere(
    server: ZookeeperServer, authority: Authority, meta_url: str, shard_urls: dict[int, str], tmp_path: Path
) -> None:
    file = tmp_path / "login"
    file.write_text(f"{LOGIN}\n")
    file.chmod(0o600)
    settings = {
        "membership": server.tls_url(path()),
        "membership_ca_file": authority.ca_file,
        "membership_login_file": str(file),
    }
    async with running_host(meta_url, {0: shard_urls[0]}, **settings) as host:
        await until(lambda: host.host.owned_count == 1)
        await host.client.enqueue("jobs", "t", b"x")
        client = host.host._membership._backend._client
        assert "planted" not in repr(vars(client)) + str(client.auth_data)


def test_bytes_that_were_decrypted_with_others_are_ready_to_be_read(authority: Authority) -> None:
    """Two answers come in one record, and the first is read: the kernel has nothing more, and the connection has."""
    issued = authority.issue("answers", hosts=["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*issued)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as others:

        def answer() -> ssl.SSLSocket:
            served = context.wrap_socket(listener.accept()[0], server_side=True)
            served.sendall(b"one two!")
            return served

        served = others.submit(answer)
        handler = TlsHandler(access(authority))
        with closing(handler.create_connection(listener.getsockname(), PATIENCE_S, "127.0.0.1")) as connection:
            assert handler.select([connection], [], [], PATIENCE_S)[0] == [connection]
            assert connection.recv(4) == b"one "
            assert handler.select([connection], [], [], 0)[0] == [connection]
            assert connection.recv(4) == b"two!"
            assert handler.select([connection], [], [], 0)[0] == []
            served.result().close()


def test_a_hidden_text_is_sent_and_not_shown() -> None:
    text = HiddenText(LOGIN)
    assert text.encode() == LOGIN.encode()
    assert f"{text} {text!r} {text!s} {[text]}" == "*** *** *** [***]"


@pytest.mark.parametrize("wrong", [b"word", b":word", b"name:", b"\xff:x"])
def test_a_file_without_a_login_is_told_without_its_content(wrong: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="NAME:PASSWORD") as problem:
        zookeeper_url.login_of(Secret(wrong))
    assert problem.value.message.count("word") == 0


@pytest.mark.parametrize("key", ["membership_ca_file", "membership_cert_file", "membership_login_file"])
@pytest.mark.parametrize("membership", ["", "zookeeper://zk-1/foqs"])
def test_files_for_an_ensemble_without_tls_are_refused(key: str, membership: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} is set, and membership is no zookeeper"):
        load_config({"meta_url": "mysql://db/meta", "membership": membership, key: "/file"})


def test_urls_say_whether_it_is_tls_and_have_a_port_of_their_own() -> None:
    url = zookeeper_url.parse("zookeeper+tls://zk-1,zk-2:7/foqs")
    assert (url.servers, url.is_tls, str(url)) == (
        ("zk-1:2281", "zk-2:7"), True, "zookeeper+tls://zk-1:2281,zk-2:7/foqs"
    )  # fmt: skip
    assert not zookeeper_url.parse("zookeeper://zk-1").is_tls
    with pytest.raises(ValueError, match="membership_login_file"):
        zookeeper_url.parse("zookeeper+tls://me:geheim@zk-1")
