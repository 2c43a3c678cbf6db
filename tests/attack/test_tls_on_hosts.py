"""TLS on real hosts, and between them."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from foqs.bootstrap import Host
from foqs.config import HostConfig
from foqs.model.errors import InvalidArgumentError, PermissionDeniedError
from foqs.model.host_certificates import host_uri
from foqs.wire.codec import structs
from tests.support.certificates import Authority
from tests.support.raw_client import RawClient
from tests.support.waiting import eventually

pytestmark = pytest.mark.database


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def settings(authority: Authority, name: str, **more: Any) -> dict[str, Any]:
    issued = authority.issue(name, hosts=["127.0.0.1"])
    made = {"tls": "required", "tls_cert_file": issued.cert_file, "tls_key_file": issued.key_file}
    return made | {"tls_ca_file": authority.ca_file} | more


@asynccontextmanager
async def served(meta_url: str, shard_urls: Mapping[int, str], name: str, **given: Any) -> AsyncIterator[Host]:
    host = Host(HostConfig(meta_url=meta_url, shards=dict(shard_urls), port=0, host_name=name, **given))
    await host.start()
    try:
        yield host
        await host.drain()
    finally:
        await host.stop()


def handshakes_of(host: Host) -> int:
    """The handshakes with this host that were done."""
    found = re.search(
        r'^foqs_handshakes_total\{outcome="done"\} (\S+)', generate_latest(host.metrics.registry).decode(), re.M
    )
    return 0 if found is None else int(float(found[1]))


async def stores(client: RawClient) -> bool:
    request = structs.EnqueueRequest("jobs", [structs.NewItem("t", b"x")])
    reply = await client.call("enqueue", request)
    return reply.error is None and not reply.response.errors


async def test_hosts_that_require_tls_serve_callers_and_each_other_by_it_alone(
    meta_url: str, shard_urls: dict[int, str], authority: Authority
) -> None:
    tls = authority.client_context()
    async with (
        served(meta_url, shard_urls, "a", **settings(authority, "a", tls_clients="required")) as one,
        served(meta_url, {}, "b", **settings(authority, "b")) as other,
    ):
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            async with RawClient.connect("127.0.0.1", one.port, tls=tls) as client:
                await stores(client)
        async with RawClient.connect("127.0.0.1", other.port, tls=tls) as client:
            made = await client.call("createNamespace", structs.CreateNamespaceRequest("jobs"))
            assert made.error is None
            assert handshakes_of(one) == 0
            await eventually(lambda: stores(client), bool)  # The shards are those of the other host.
            assert handshakes_of(one) >= 1
        async with RawClient.connect("127.0.0.1", other.port) as plain:
            refused = (await plain.call("listHosts", structs.ListHostsRequest())).error
            assert isinstance(refused, PermissionDeniedError)
            assert "this port speaks TLS alone" in refused.message


async def test_a_host_with_a_certificate_of_another_authority_is_not_called(
    meta_url: str, shard_urls: dict[int, str], authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "foreign").mkdir()
    foreign = Authority(tmp_path / "foreign")
    async with (
        served(meta_url, shard_urls, "a", **settings(foreign, "a")) as one,
        served(meta_url, {}, "b", **settings(authority, "b")) as other,
    ):
        with capture_logs() as logs:
            async with (
                RawClient.connect("127.0.0.1", other.port, tls=authority.client_context()) as client,
                RawClient.connect("127.0.0.1", one.port, tls=foreign.client_context()) as right,
            ):
                made = await right.call("createNamespace", structs.CreateNamespaceRequest("jobs"))
                assert made.error is None

                async def told() -> list[Any]:
                    await stores(client)
                    return [line for line in logs if line["event"] == "peer_not_reached"]

                found = await eventually(told, bool)
                assert "certificate verify failed" in found[0]["error"]
                assert await stores(right)


def by_certificates(authority: Authority, hosts: Authority, name: str, uri_of: str = "", **more: Any) -> dict[str, Any]:
    issued = hosts.issue(name, uris=[host_uri("foqs", uri_of or name)])
    made = {"peer_ca_file": hosts.ca_file, "peer_cert_file": issued.cert_file, "peer_key_file": issued.key_file}
    return settings(authority, f"port-of-{name}", **made, **more)


async def test_hosts_call_each_other_by_certificates_while_the_settings_change_one_host_after_the_other(
    meta_url: str, shard_urls: dict[int, str], authority: Authority, tmp_path: Path
) -> None:
    """The last host has no certificate, and is called by none and calls none that requires one."""
    (tmp_path / "hosts").mkdir()
    hosts = Authority(tmp_path / "hosts")
    tls = authority.client_context()
    async with served(meta_url, shard_urls, "a", **by_certificates(authority, hosts, "a")) as one:
        async with RawClient.connect("127.0.0.1", one.port, tls=tls) as client:
            made = await client.call("createNamespace", structs.CreateNamespaceRequest("jobs"))
            assert made.error is None
        for name, given in (
            ("b", by_certificates(authority, hosts, "b")),
            ("c", by_certificates(authority, hosts, "c", peer_certificates="shown")),
        ):
            with capture_logs() as logs:
                async with (
                    served(meta_url, {}, name, **given) as other,
                    RawClient.connect("127.0.0.1", other.port, tls=tls) as client,
                ):
                    await eventually(lambda client=client: stores(client), bool)  # type: ignore[misc]
            assert [line["peer"].partition("#")[0] for line in logs if line["event"] == "peer_admitted"][:1]
            assert not [line for line in logs if line["event"] == "peer_refused"]
        with capture_logs() as logs:
            async with (
                served(meta_url, {}, "d", **settings(authority, "d")) as other,
                RawClient.connect("127.0.0.1", other.port, tls=tls) as client,
            ):

                async def refused() -> list[Any]:
                    assert not await stores(client)
                    return [line for line in logs if line["event"] == "peer_refused"]

                found = await eventually(refused, bool)
                assert found[0]["reason"] == "no_certificate"


async def test_a_host_whose_certificate_names_another_one_does_not_start(
    meta_url: str, shard_urls: dict[int, str], authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "hosts").mkdir()
    given = by_certificates(authority, Authority(tmp_path / "hosts"), "a", uri_of="b")
    with pytest.raises(InvalidArgumentError, match=r"needs the one URI foqs://foqs/host/a"):
        async with served(meta_url, shard_urls, "a", **given):
            pass


async def test_a_new_certificate_is_served_after_a_reload_without_a_failed_call(
    meta_url: str, shard_urls: dict[int, str], authority: Authority
) -> None:
    tls = authority.client_context()
    async with served(meta_url, shard_urls, "a", **settings(authority, "a")) as host:
        assert host.certificates is not None
        async with RawClient.connect("127.0.0.1", host.port, tls=tls) as old:
            assert (await old.call("createNamespace", structs.CreateNamespaceRequest("jobs"))).error is None
            numbers = []
            for _ in range(5):
                authority.issue("a", hosts=["127.0.0.1"])
                await host.certificates.reload()
                async with RawClient.connect("127.0.0.1", host.port, tls=tls) as new:
                    numbers.append(new.certificate()["serialNumber"])
                    assert await eventually(lambda new=new: stores(new), bool)  # type: ignore[misc]
                assert await stores(old)
            assert len(set(numbers)) == 5


async def test_a_host_whose_certificate_cannot_be_used_does_not_start(
    meta_url: str, shard_urls: dict[int, str], authority: Authority
) -> None:
    given = settings(authority, "a")
    Path(given["tls_key_file"]).chmod(0o644)  # noqa: ASYNC240
    with pytest.raises(InvalidArgumentError, match=r"tls_key_file = .* chmod 0600"):
        async with served(meta_url, shard_urls, "a", **given):
            pass
