"""`foqs schema` brings all shards of a cluster up to date, also those that only the meta database knows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from foqs.config import HostConfig
from foqs.dev.local_server import LocalServer
from foqs.model.cluster import ShardUse
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.schema.migrations import SchemaKind, apply
from foqs.storage.sessions.places import place_of
from foqs.storage.shard.identity import identity_at
from tests.integration.test_cli_local import SCHEMA, migrations_of, run

pytestmark = pytest.mark.database


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("CONFIG", *(name.upper() for name in HostConfig.model_fields)):
        monkeypatch.delenv(f"FOQS_{key}", raising=False)


@pytest.fixture
def old_shard(mysql_server: LocalServer, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Makes a shard's database as an earlier version left it, with the last migration pending."""
    made: list[str] = []
    for path in sorted((SCHEMA / "shard").glob("*.sql"))[:-1]:
        (tmp_path / path.name).write_text(path.read_text())

    def make(name: str) -> str:
        url = mysql_server.url(name)
        apply(url, SchemaKind.SHARD, tmp_path)
        made.append(name)
        return url

    yield make
    with closing(mysql_server.connect()) as connection, connection.cursor() as cursor:
        for name in made:
            cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")


def test_shards_that_only_the_meta_database_knows_are_brought_up_to_date(
    meta_url: str, shard_urls: dict[int, str], old_shard: Callable[[str], str]
) -> None:
    url, newest = old_shard("schema_known"), migrations_of("shard")[-1]
    with closing(MetaStore(meta_url)) as meta:
        meta.shards.add(3, place_of(url), "")
        meta.shards.adopt({0: place_of(shard_urls[0])}, "")
    flags = ["--meta-url", meta_url, "--shard", f"0={shard_urls[0]}"]
    before = run("schema", "status", *flags, "--output", "json")
    assert before.exit_code == 1
    found = json.loads(before.stdout)
    assert {name: one["origin"] for name, one in found.items()} == {
        "meta": "flag", "shard 0": "flag", "shard 3": "meta database",
    }  # fmt: skip
    assert found["shard 3"]["pending"] == [newest]
    applied = run("schema", "apply", *flags)
    assert applied.exit_code == 0, applied.stderr
    assert applied.stderr.splitlines() == [
        "meta (flag): up to date",
        "shard 0 (flag): up to date",
        f"shard 3 (meta database): applied {newest}",
    ]
    after = run("schema", "status", *flags)
    assert after.exit_code == 0
    assert "meta database" in after.stdout


def test_a_meta_database_that_is_to_be_made_is_made_first_and_knows_no_shard(mysql_server: LocalServer) -> None:
    flags = ["--meta-url", mysql_server.url("schema_meta")]
    before = run("schema", "status", *flags)
    assert before.exit_code == 1
    assert "shards that only the meta database knows are not shown until foqs schema apply has made" in before.stderr
    assert "error" not in before.stderr, "nothing is wrong yet: it is pending"
    after = run("schema", "apply", *flags)
    assert after.exit_code == 0
    assert "applied 0001_initial" in after.stderr
    with closing(mysql_server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("DROP DATABASE schema_meta")


def test_shards_that_cannot_be_had_are_named_after_the_others_were_brought_up_to_date(
    meta_url: str, old_shard: Callable[[str], str], tmp_path: Path
) -> None:
    with closing(MetaStore(meta_url)) as meta:
        meta.shards.take_epoch(1, "somebody", 1, 0)
        meta.shards.add(2, f"mysql://localhost/s2?unix_socket={tmp_path}/none".replace("/none", "%2Fnone"), "")
        meta.shards.add(3, place_of(old_shard("schema_reached")), "")
    for command in ("apply", "status"):
        result = run("schema", command, "--meta-url", meta_url)
        assert result.exit_code == 1, "to wait for shard 2 brings about no place of shard 1"
        errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert [error.partition(":")[2].split(":")[0].strip() for error in errors] == [
            "shard 1 (meta database)", "shard 2 (meta database)",
        ]  # fmt: skip
        assert "its place is not known" in errors[0]
        assert "no connection to" in errors[1]
    assert run("schema", "status", "--meta-url", meta_url, "--output", "json").stdout.count('"pending": []') == 2


def test_removed_shards_are_left_alone(meta_url: str, mysql_server: LocalServer) -> None:
    place = place_of(mysql_server.url("schema_removed"))
    with closing(MetaStore(meta_url)) as meta:
        meta.shards.add(5, place, "")
        meta.shards.update(5, ShardUse.DRAINING, None, None)
        epoch = meta.shards.take_epoch(5, "somebody", 1, 0).epoch
        meta.shards.remove(5, epoch)
    assert "shard 5" not in run("schema", "apply", "--meta-url", meta_url).stderr
    named = run("schema", "apply", "--meta-url", meta_url, "--shard", f"5={mysql_server.url('schema_removed')}")
    assert named.exit_code == 0
    assert "shard 5 (flag): left alone, it was removed from the cluster" in named.stderr
    assert "shard 5" not in run("schema", "status", "--meta-url", meta_url).stdout


def test_a_database_that_hosts_have_served_and_that_is_gone_is_not_made_anew(
    meta_url: str, mysql_server: LocalServer
) -> None:
    with closing(MetaStore(meta_url)) as meta:
        meta.shards.add(4, place_of(mysql_server.url("schema_gone")), "")
        meta.shards.take_epoch(4, "somebody", 1, 0)
    url = mysql_server.url("schema_gone")
    for named in ([], ["--shard", f"4={url}"]):
        result = run("schema", "apply", "--meta-url", meta_url, *named)
        assert result.exit_code == 1
        origin = "flag" if named else "meta database"
        assert f"error: shard 4 ({origin}): hosts have served it, in epoch 1 last, and its database" in result.stderr
        assert "restore the database" in result.stderr
        with closing(mysql_server.connect()) as connection, connection.cursor() as cursor:
            assert cursor.execute("SHOW DATABASES LIKE 'schema_gone'") == 0
    insisting = run("schema", "apply", "--meta-url", meta_url, "--shard", f"4={url}", "--new-shard", "4")
    assert insisting.exit_code == 0, insisting.stderr
    assert (found := identity_at(4, url)) is not None
    assert found.shard_id == 4
    assert run("schema", "apply", "--meta-url", meta_url, "--shard", f"4={url}").exit_code == 0
    with closing(mysql_server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("DROP DATABASE schema_gone")


def test_a_new_shard_that_nobody_has_named_is_an_error(meta_url: str) -> None:
    result = run("schema", "apply", "--meta-url", meta_url, "--new-shard", "9")
    assert result.exit_code == 1
    assert "shard 9" in result.stderr
    assert "there is no such shard" in result.stderr


def test_shards_of_the_meta_database_are_opened_as_hosts_open_them(
    meta_url: str, mysql_server: LocalServer, old_shard: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = old_shard("schema_login")
    with closing(mysql_server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE USER migrator@localhost IDENTIFIED BY 'geheim'")
        cursor.execute("GRANT ALL ON schema_login.* TO migrator@localhost")
    with closing(MetaStore(meta_url)) as meta:
        meta.shards.add(6, place_of(url), "")
    try:
        flags = ["--meta-url", meta_url]
        monkeypatch.setenv("FOQS_SHARD_LOGIN", "mysql://migrator:wrong@localhost")
        refused = run("schema", "apply", *flags)
        assert refused.exit_code == 5
        assert "'migrator'@'localhost'" in refused.stderr
        monkeypatch.setenv("FOQS_SHARD_LOGIN", "mysql://migrator:geheim@localhost")
        assert run("schema", "apply", *flags).exit_code == 0
    finally:
        with closing(mysql_server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("DROP USER migrator@localhost")


def test_two_places_of_one_shard_are_told(meta_url: str, shard_urls: dict[int, str]) -> None:
    with closing(MetaStore(meta_url)) as meta:
        meta.shards.add(0, "mysql://elsewhere:3306/s0", "")
    result = run("schema", "status", "--meta-url", meta_url, "--shard", f"0={shard_urls[0]}")
    assert result.exit_code == 0
    assert "warning: shard 0 (flag): the meta database has it at mysql://elsewhere:3306/s0, and" in result.stderr


def test_a_tls_file_that_is_missing_is_told_with_its_database_and_option(meta_url: str, tmp_path: Path) -> None:
    flags = ["--meta-url", meta_url, "--shard", f"2=mysql://h/s2?ssl_ca={tmp_path}/none"]
    for command in ("apply", "status"):
        result = run("schema", command, *flags)
        assert result.exit_code == 1
        assert f"error: shard 2 (flag): ssl_ca = {tmp_path}/none cannot be used: No such file" in result.stderr
    result = run("schema", "status", "--meta-url", f"mysql://h/m?ssl_ca={tmp_path}/none")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: meta (flag): ssl_ca = {tmp_path}/none cannot be used: No such file")


def test_an_option_that_is_none_is_told_before_anything_is_done() -> None:
    result = run("schema", "status", "--meta-url", "mysql://h/m?ssl_mode=REQUIRED")
    assert result.exit_code == 2
    assert "has the option ssl_mode, which is none of foqs: use ssl_ca" in result.stderr
