"""Refused sign-ins and changes of secrets come into the audit of a real meta database, and the command lists them."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from foqs.cli.main import cli
from foqs.config import HostConfig
from foqs.model.audit import START, AuditRecord
from foqs.model.errors import UnavailableError
from foqs.model.secret import Secret
from foqs.storage.meta import meta_audit
from foqs.storage.meta.meta_store import MetaStore
from tests.integration.test_supervised import Supervisor
from tests.support.running_host import running_host
from tests.support.sign_in_world import log_in
from tests.support.waiting import eventually

pytestmark = pytest.mark.database
OLD = Secret(b"o" * 32)


def records(meta_url: str) -> list[AuditRecord]:
    with closing(MetaStore(meta_url)) as meta:
        return meta.audit.page(START, 1 << 60, 100)


async def test_refused_sign_ins_are_listed_by_the_command(meta_url: str, shard_urls: dict[int, str]) -> None:
    async with running_host(meta_url, {0: shard_urls[0]}) as host:
        for _ in range(3):
            assert (await log_in(host.raw, "x")).error is not None
        asked = ["audit", "list", "--address", f"127.0.0.1:{host.host.port}", "--output", "json", "--verb", "signIn"]

        async def listed() -> list[dict[str, Any]]:
            done = await asyncio.to_thread(CliRunner().invoke, cli, asked)
            assert done.exit_code == 0, done.output
            return [json.loads(line) for line in done.stdout.splitlines()]

        (record,) = await eventually(listed, bool)
        assert (record["principal"], record["address"]) == ("nobody", "127.0.0.1")
        assert (record["outcome"], record["count"]) == ("PERMISSION_DENIED, no token", 1)
    told = [record.count for record in records(meta_url) if record.verb == "signIn"]
    assert told == [1, 2], "the sum is written at the end"


def test_commands_with_a_login_record_what_they_do_to_secrets(meta_url: str, tmp_path: Path) -> None:
    with closing(MetaStore(meta_url)) as meta:
        meta.secrets.keep(OLD)

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(cli, [*arguments], env={"FOQS_META_URL": meta_url}, prog_name="foqs")
        assert done.exit_code == 0, done.output
        return done.output

    run("peers", "new-secret")
    run("peers", "new-secret", "--cancel")
    run("peers", "new-secret")
    run("peers", "new-secret", "--finish")
    token_files = [tmp_path / "one", tmp_path / "two"]
    run("access", "init", "--enforce", "--token-file", str(token_files[0]))
    run("access", "reset-admin", "--token-file", str(token_files[1]))
    found = sorted(records(meta_url), key=lambda record: record.at_ms)
    assert [record.verb for record in found] == [
        "newPeerSecret", "cancelPeerSecret", "newPeerSecret", "finishPeerSecret",
        "makeAdministrator", "enforceAccess", "makeAdministrator",
    ]  # fmt: skip
    for record in found:
        assert record.principal.startswith("(login ")
        assert record.credential.startswith("(user ")
        assert record.address
        assert record.outcome == "OK"
    assert found[0].changes.startswith("secret=")
    assert " next=" in found[0].changes
    for path in token_files:
        assert path.read_text().strip()[20:] not in str(found)
    run("schema", "prune-audit", "--before", "0s")
    (pruned,) = records(meta_url)
    assert pruned.verb == "pruneAudit"
    assert "records_count=7" in pruned.changes


def test_a_change_that_cannot_be_recorded_is_done_and_says_so(meta_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise UnavailableError("the table is full")

    monkeypatch.setattr(meta_audit.MetaAudit, "write", away)
    with closing(MetaStore(meta_url)) as meta:
        meta.secrets.keep(OLD)
        done = CliRunner().invoke(cli, ["peers", "new-secret"], env={"FOQS_META_URL": meta_url}, prog_name="foqs")
        assert done.exit_code == 0, done.output
        assert "newPeerSecret is done, but is not in the audit: the table is full" in done.stderr
        assert meta.secrets.rotation().secret.next is not None


async def test_a_reload_of_a_running_host_is_recorded(meta_url: str, shard_urls: dict[int, str]) -> None:
    config = HostConfig.model_validate(
        {"meta_url": meta_url, "shards": {0: shard_urls[0]}, "host_name": "a", "port": 0, "metrics_port": 0,
         "allow_undurable_servers": True}
    )  # fmt: skip
    with capture_logs():
        supervisor = Supervisor(config)
        await supervisor.ready
        supervisor.wanted = config.model_copy(update={"log_level": "debug"})
        supervisor.orders.reload.set()

        async def told() -> list[AuditRecord]:
            return await asyncio.to_thread(records, meta_url)

        (record,) = await eventually(told, bool)
        supervisor.orders.stop.set_result("test")
        await supervisor.task
    assert (record.verb, record.changes) == ("reloadConfiguration", "changed=log_level needs_restart=")
