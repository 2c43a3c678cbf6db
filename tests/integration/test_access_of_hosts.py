"""Who can call is said to one host, and all hosts know it: on a real meta database."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import foqs
from foqs import AccessGrant, AccessMode
from foqs.model import limits
from foqs.model.access import CREDENTIALS_MAX
from tests.support.running_host import RunningHost, running_host
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.database
WORKER = AccessGrant("jobs", ("worker",))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def principal_of(host: RunningHost, token: str) -> str | None:
    """The principal by whom the host knows the token, or None."""
    snapshot = host.host.access.snapshot
    try:
        credential = snapshot.by_token(token, now_ms())
    except foqs.PermissionDeniedError:
        return None
    found = snapshot.principal(credential, now_ms())
    return found.name if found else None


async def test_a_token_counts_at_once_where_it_was_made_and_soon_on_all_hosts(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    async with (
        running_host(meta_url, shard_urls, name="a") as one,
        running_host(meta_url, {}, name="b") as other,
    ):
        await one.admin.create_principal("mailer", [WORKER])
        made = await one.admin.create_token("mailer", label="first")
        assert principal_of(one, made.token) == "mailer"
        await until(lambda: principal_of(other, made.token) == "mailer")
        assert made.info.expires_at_ms - made.info.created_at_ms == 90 * limits.DAY_MS
        assert made.token not in repr(made)
        credential = one.host.access.snapshot.by_token(made.token, now_ms())
        one.host.access.note_used(credential, now_ms())

        async def used() -> list[int]:
            return [found.used_at_ms async for found in other.admin.list_tokens("mailer")]

        assert len(await eventually(used, any)) == 1
        await other.admin.update_principal("mailer", enabled=False)
        await until(lambda: principal_of(one, made.token) is None)
        await other.admin.update_principal("mailer", enabled=True)
        await until(lambda: principal_of(one, made.token) == "mailer")
        await other.admin.revoke_token(made.info.id)
        assert principal_of(other, made.token) is None
        await until(lambda: principal_of(one, made.token) is None)


async def test_a_deleted_namespace_takes_its_grants_with_it(meta_url: str, shard_urls: dict[int, str]) -> None:
    async with running_host(meta_url, shard_urls) as host:
        await host.admin.create_principal("mailer", [WORKER, AccessGrant("job*", ("viewer",))])
        await host.admin.delete_namespace("jobs")
        (found,) = [one async for one in host.admin.list_principals()]
        assert [one.namespaces for one in found.grants] == ["job*"]
        assert [one.namespaces for one in host.host.access.snapshot.grants_of("mailer")] == ["job*"]


async def test_the_mode_is_refused_or_known_to_all_hosts(meta_url: str, shard_urls: dict[int, str]) -> None:
    async with running_host(meta_url, shard_urls) as host:
        with pytest.raises(foqs.InvalidArgumentError, match="role admin"):
            await host.admin.set_access_mode(AccessMode.ENFORCED)
        with pytest.raises(foqs.InvalidArgumentError, match="mode is 7"):
            await host.admin.set_access_mode(7)  # type: ignore[arg-type]
        state = await host.admin.set_access_mode(AccessMode.PERMISSIVE)
        assert (state.mode, state.version, state.principals_count) == (AccessMode.PERMISSIVE, 1, 0)
        assert host.host.access.snapshot.mode is AccessMode.PERMISSIVE
        assert (await host.admin.get_access()) == state
        assert await host.admin.list_refusals() == []


async def test_more_principals_and_credentials_than_a_page_or_a_principal_has(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    async with running_host(meta_url, shard_urls) as host:
        names = [f"p{at:03d}" for at in range(101)]
        for name in names:
            await host.admin.create_principal(name)
        assert [one.name async for one in host.admin.list_principals()] == names
        assert [one.name async for one in host.admin.list_principals("p10")] == ["p100"]
        for _ in range(CREDENTIALS_MAX):
            await host.admin.create_token("p000")
        with pytest.raises(foqs.InvalidArgumentError, match="8 tokens and certificates"):
            await host.admin.create_token("p000")
        calls: list[Callable[[], object]] = [
            lambda: host.admin.create_principal("p000"),
            lambda: host.admin.create_principal("x", [AccessGrant("ns", ("boss",))]),
            lambda: host.admin.create_token("nobody"),
            lambda: host.admin.create_token("p001", expires_in_ms=-1),
            lambda: host.admin.update_principal("p001", grants=[], added=[WORKER]),
        ]
        for call in calls:
            with pytest.raises((foqs.InvalidArgumentError, foqs.AlreadyExistsError, foqs.NotFoundError)):
                await call()  # type: ignore[misc]
