"""A grant reaches no further than its names: not to items of a lost namespace, and not to the places of all others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from foqs import AccessMode
from foqs.model import namespace
from foqs.model.errors import ErrorCode
from foqs.wire.codec import structs
from tests.attack.test_access_on_hosts import caller, token_of
from tests.integration.test_namespace_changes import dump, number_of, restore, unknown
from tests.support.raw_client import RawClient
from tests.support.running_host import RunningHost, running_host
from tests.support.waiting import until

pytestmark = pytest.mark.database
DENIED, INVALID = ErrorCode.PERMISSION_DENIED, ErrorCode.INVALID_ARGUMENT


@asynccontextmanager
async def enforced(meta_url: str, shard_urls: dict[int, str]) -> AsyncIterator[tuple[RunningHost, RawClient]]:
    """A host with enforced access, and a connection of its administrator."""
    async with running_host(meta_url, shard_urls) as host:
        root = await token_of(host, "root", {"*": "admin owner"})
        async with caller(host, root.token) as admin:
            mode = structs.SetAccessModeRequest(AccessMode.ENFORCED)
            assert (await admin.call("setAccessMode", mode)).error is None
            yield host, admin
            assert (await admin.call("setAccessMode", structs.SetAccessModeRequest(0))).error is None


async def test_an_operator_does_not_bring_a_lost_namespace_under_a_name_that_it_can_read(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    """With READ in `mine-*`, an operator that gives the items of others such a name would read their payloads."""
    async with running_host(meta_url, {0: shard_urls[0]}) as host:
        backup = dump(meta_url)
        await host.admin.create_namespace("lost")
        lost = number_of(host, "lost")
        await host.client.enqueue("lost", "t", b"secret")
        restore(meta_url, backup)
        await until(lambda: unknown(host) == {lost: "lost"})
        operator = await token_of(host, "operator", {"*": "operator", "mine-*": "owner"})
        root = await token_of(host, "root", {"*": "admin owner"})
        await host.admin.set_access_mode(AccessMode.ENFORCED)
        await until(lambda: host.host.access.snapshot.mode is AccessMode.ENFORCED)
        async with caller(host, root.token) as admin, caller(host, operator.token) as client:
            for name in ("mine-now", "lost", ""):
                refused = (await client.call("recoverNamespace", structs.RecoverNamespaceRequest(lost, name))).error
                assert refused is not None, name
                assert refused.code is DENIED, name
                assert "it lacks ACCESS" in refused.message, name
            kept = (await client.call("recoverNamespace", structs.RecoverNamespaceRequest(lost))).response
            assert kept.name == "lost"
            peeked = (await client.call("peekItems", structs.PeekItemsRequest("lost", "t", 10))).error
            assert peeked is not None
            assert peeked.code is DENIED
            empty = structs.RecoverNamespaceRequest(lost, "")
            refused = (await admin.call("recoverNamespace", empty)).error
            assert refused is not None
            assert refused.code is INVALID
            assert (await admin.call("setAccessMode", structs.SetAccessModeRequest(0))).error is None


async def test_the_grant_of_a_prefix_does_not_use_up_the_namespaces_of_the_cluster(
    meta_url: str, shard_urls: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespace, "NAMESPACES_PER_PREFIX_MAX", 3)
    async with enforced(meta_url, shard_urls) as (host, admin):

        async def made(name: str, grants: dict[str, str]) -> str:
            made = structs.CreatePrincipalRequest(
                name, [structs.AccessGrant(at, roles.split()) for at, roles in grants.items()]
            )
            assert (await admin.call("createPrincipal", made)).error is None
            token = (await admin.call("createToken", structs.CreateTokenRequest(name))).response.token
            assert isinstance(token, str)
            return token

        async def creates(client: RawClient, name: str) -> ErrorCode | None:
            error = (await client.call("createNamespace", structs.CreateNamespaceRequest(name))).error
            return None if error is None else ErrorCode(error.code)

        team = await made("team", {"team-*": "owner", "exactly": "owner"})
        other = await made("other", {"other-*": "owner"})
        lead = await made("lead", {"team-*": "owner", "team-a*": "owner"})
        operator = await made("operator", {"team-*": "owner", "*": "operator"})
        async with caller(host, team) as client:
            for number in range(3):
                assert await creates(client, f"team-{number}") is None
            full = (await client.call("createNamespace", structs.CreateNamespaceRequest("team-3"))).error
            assert full is not None
            assert (full.code, full.nothing_done) == (INVALID, True)
            assert "there are 3 namespaces whose names begin with 'team-'" in full.message
            assert await creates(client, "team-0") is ErrorCode.ALREADY_EXISTS
            assert await creates(client, "exactly") is None, "a name is a grant of its own"
            assert (await client.call("deleteNamespace", structs.DeleteNamespaceRequest("team-0"))).error is None
            assert await creates(client, "team-3") is None
            assert await creates(client, "team-4") is INVALID
        async with caller(host, other) as client:
            assert await creates(client, "other-0") is None
        async with caller(host, lead) as client:
            assert await creates(client, "team-b") is INVALID
            assert await creates(client, "team-a") is None, "another of its grants has room"
        async with caller(host, operator) as client:
            assert await creates(client, "team-5") is None
        assert await creates(admin, "team-6") is None, "who manages all namespaces has the bound of the cluster alone"
