"""A host under exactly the privileges that `foqs schema grants` prints, and who is warned that has more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from structlog.testing import capture_logs

from foqs.client.queue_items import NewItem
from foqs.cluster.members import membership
from foqs.dev.local_server import LocalServer
from foqs.model import limits
from foqs.storage.schema.migrations import SchemaKind, status
from foqs.storage.schema.read_only import read_only_problem, unbound_by, warn_of_read_only
from foqs.storage.sessions.session import connect
from tests.integration.test_cli_local import run
from tests.support.running_host import running_host
from tests.support.waiting import until

pytestmark = pytest.mark.database

USER = "least"


def printed_grants(meta_url: str, shard_urls: dict[int, str]) -> list[str]:
    """The statements that `foqs schema grants` prints for the user of the hosts."""
    shards = [flag for shard_id, url in shard_urls.items() for flag in ("--shard", f"{shard_id}={url}")]
    users = ["--user", "data", "--data-user", f"{USER}@localhost"]
    lines = run("schema", "grants", *users, "--meta-url", meta_url, *shards).stdout.splitlines()
    return [line.removesuffix(";") for line in lines if not line.startswith("--")]


@pytest.fixture
def user(mysql_server: LocalServer, meta_url: str, shard_urls: dict[int, str]) -> Iterator[str]:
    with closing(mysql_server.connect()) as session, session.cursor() as cursor:
        for statement in printed_grants(meta_url, shard_urls):
            cursor.execute(statement)
        cursor.execute(f"ALTER USER {USER}@localhost ACCOUNT UNLOCK")
        yield USER
        cursor.execute(f"DROP USER {USER}@localhost")


def of(user: str, url: str) -> str:
    return url.replace("//root@", f"//{user}@")


@pytest.mark.deep
async def test_the_printed_privileges_are_enough(
    user: str, meta_url: str, shard_urls: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For namespaces, items, a shard that is added, and a take-over from an owner whose session has to be ended."""
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 50)
    monkeypatch.setattr(limits, "HOST_DEAD_MS", 500)
    monkeypatch.setattr(membership, "SETTLED_MS", 0)
    urls = {shard_id: of(user, shard_urls[shard_id]) for shard_id in (0, 1)}
    async with running_host(of(user, meta_url), urls, name="host-1") as one:
        await until(lambda: one.host.owned_count == 2)
        await one.client.enqueue_many("jobs", [NewItem("t", b"x", dedup_id=f"{at}") for at in range(20)])
        async with running_host(of(user, meta_url), {}, name="host-2", namespace=None) as two:
            await until(lambda: two.host.owned_count == 1)
            # It hangs, as far as others can see.
            one.host._membership._tasks.cancel()
            await until(lambda: two.host.owned_count == 2)
            items = await two.leased(20)
            assert not await two.client.ack("jobs", [item.receipt for item in items], return_errors=True)
            await two.admin.create_namespace("later")
            await two.admin.delete_namespace("later")


@pytest.mark.parametrize("kind", [SchemaKind.META, SchemaKind.SHARD])
def test_who_may_write_under_read_only_is_warned_by_schema_status(
    user: str, meta_url: str, shard_urls: dict[int, str], kind: SchemaKind
) -> None:
    url = meta_url if kind is SchemaKind.META else shard_urls[0]
    (warning,) = status(url, kind).warnings
    assert "ALL PRIVILEGES on *.*" in warning or "SUPER" in warning
    found = status(of(user, url), kind)
    assert (found.is_current, found.warnings) == (True, ())


def test_a_user_with_the_printed_privileges_is_bound_by_read_only(
    user: str, mysql_server: LocalServer, shard_urls: dict[int, str]
) -> None:
    def problem(url: str) -> str:
        with closing(connect(url)) as session, session.cursor() as cursor:

            def rows(statement: str) -> object:
                cursor.execute(statement)
                return cursor.fetchall()

            return read_only_problem(rows)

    assert problem(of(user, shard_urls[0])) == ""
    assert "read_only" in problem(shard_urls[0])


@pytest.mark.parametrize(
    ("grant", "unbound"),
    [
        ("GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost` WITH GRANT OPTION", ["ALL PRIVILEGES"]),
        ("GRANT SELECT, SUPER, RELOAD ON *.* TO `a`@`%`", ["SUPER"]),
        ("GRANT READ_ONLY ADMIN ON *.* TO `a`@`%`", ["READ_ONLY ADMIN"]),
        ("GRANT READ ONLY ADMIN ON *.* TO `a`@`%`", ["READ ONLY ADMIN"]),
        ("GRANT BACKUP_ADMIN,CONNECTION_ADMIN,ROLE_ADMIN ON *.* TO `root`@`localhost`", ["CONNECTION_ADMIN"]),
        ("GRANT CONNECTION ADMIN ON *.* TO `a`@`%`", []),
        ("GRANT ALL PRIVILEGES ON `foqs\\_%`.* TO `a`@`%`", []),
        ("GRANT USAGE ON *.* TO `a`@`%` IDENTIFIED BY PASSWORD '*SUPER'", []),
    ],
)
def test_the_privileges_that_read_only_does_not_bind(grant: str, unbound: list[str]) -> None:
    assert unbound_by([grant]) == unbound


@pytest.mark.parametrize(("networking", "count"), [("OFF", 1), ("ON", 0)])
def test_a_take_over_warns_unless_nobody_can_replicate_from_the_server(networking: str, count: int) -> None:
    def rows(statement: str) -> list[tuple[str, ...]]:
        if "skip_networking" in statement:
            return [("skip_networking", networking)]
        return [("GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost`",)]

    with capture_logs() as logs:
        warn_of_read_only(rows, 3)
    assert [log["event"] for log in logs] == ["read_only_does_not_bind"] * count
