"""A host under its supervisor: the events of its life, its probes, and what a reload changes."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import structlog

from foqs.bootstrap import Host
from foqs.cluster.members.membership import Membership
from foqs.config import HostConfig
from foqs.host.metrics.condition import Pulse
from foqs.model.errors import InvalidArgumentError, UnavailableError
from foqs.supervised import Orders, run_host
from tests.support.faults.programs import FOQS, Program, foqs, free_port
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.database


class Supervisor:
    """Runs a host in this process, and gives it orders."""

    def __init__(self, config: HostConfig) -> None:
        self.orders = Orders(asyncio.get_running_loop().create_future(), asyncio.Event(), lambda: self.wanted)
        self.wanted = config
        self.ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(run_host(config, self.orders, self.ready.set_result))

    async def ask(self, path: str) -> tuple[int, str]:
        return await asyncio.to_thread(probe, self.wanted.metrics_port, path)


def probe(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.fixture
def config(meta_url: str, shard_urls: dict[int, str]) -> HostConfig:
    return HostConfig(meta_url=meta_url, shards=shard_urls, port=0, host_name="h", metrics_port=free_port())


async def test_a_life_is_told_from_start_to_stop_and_probes_follow_it(config, capsys):
    supervisor = Supervisor(config)
    port = await supervisor.ready
    assert await supervisor.ask("/startupz") == (200, "ok\n")
    assert await supervisor.ask("/livez") == (200, "ok\n")
    assert await supervisor.ask("/readyz") == (200, "ok\n")
    assert "foqs_shard_owned" in (await supervisor.ask("/metrics"))[1]
    supervisor.orders.stop.set_result("SIGTERM")
    await supervisor.task
    logged = {event["event"]: event for event in events(capsys.readouterr().out)}
    introduction = {"version": version("foqs"), "host_name": "h", "metrics_port": config.metrics_port, "shards": 4}
    assert logged["host_starting"].items() >= {**introduction, "port": 0}.items()
    assert logged["host_started"].items() >= {**introduction, "port": port, "shards_owned": 4}.items()
    assert logged["host_started"]["duration_ms"] >= 0
    assert logged["host_draining"]["reason"] == "SIGTERM"
    assert logged["host_stopped"].items() >= {"reason": "SIGTERM", "host_name": "h"}.items()
    assert list(logged)[-1] == "host_stopped"


async def test_a_host_that_drains_is_live_and_not_ready(config):
    supervisor = Supervisor(config)
    await supervisor.ready
    asked: list[tuple[int, str]] = []

    async def drain_watched(host: Host) -> None:
        asked.extend(
            [await supervisor.ask("/readyz"), await supervisor.ask("/livez"), await supervisor.ask("/startupz")]
        )
        await drain(host)

    drain = Host._drain
    with patch.object(Host, "_drain", drain_watched):
        supervisor.orders.stop.set_result("SIGTERM")
        await supervisor.task
    assert asked == [(503, "the host is draining\n"), (200, "ok\n"), (200, "ok\n")]


async def test_the_event_loop_is_seen_to_turn_until_the_last_part_has_stopped(config):
    """A server that hangs holds a stop up for seconds, and a supervisor that looks at /livez would end the host."""
    supervisor = Supervisor(config)
    await supervisor.ready
    beaten, stop, beat = asyncio.Event(), Membership._stop, Pulse.beat

    async def stop_after_a_beat(membership: Membership) -> None:
        beaten.clear()
        await asyncio.wait_for(beaten.wait(), PATIENCE_S)
        await stop(membership)

    def beat_seen(pulse: Pulse, due_s: float) -> None:
        beat(pulse, due_s)
        beaten.set()

    with patch.object(Membership, "_stop", stop_after_a_beat), patch.object(Pulse, "beat", beat_seen):
        supervisor.orders.stop.set_result("SIGTERM")
        await supervisor.task


async def test_tls_files_that_are_missing_are_told_at_the_start_and_end_it_only_for_the_meta_database(
    config: HostConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = f"mysql+pymysql://root@127.0.0.1:1/s?ssl_ca={tmp_path}/none"
    supervisor = Supervisor(config.model_copy(update={"shards": {**config.shards, 9: missing}, "shard_login": missing}))
    await supervisor.ready
    supervisor.orders.stop.set_result("SIGTERM")
    await supervisor.task
    told = [event for event in events(capsys.readouterr().out) if event["event"] == "tls_files_unusable"]
    assert [event["url_of"] for event in told] == ["shard_login", "shard 9"]
    assert told[1]["error"] == f"ssl_ca = {tmp_path}/none cannot be used: No such file or directory"
    with pytest.raises(InvalidArgumentError, match=f"meta_url: ssl_ca = {tmp_path}/none cannot be used: No such file"):
        await Supervisor(config.model_copy(update={"meta_url": missing})).task


async def test_files_with_passwords_that_cannot_be_used_are_told_at_the_start(
    config: HostConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = f"mysql+pymysql://root@127.0.0.1:1/s?password_file={tmp_path}/none"
    supervisor = Supervisor(config.model_copy(update={"shards": {**config.shards, 9: missing}}))
    await supervisor.ready
    supervisor.orders.stop.set_result("SIGTERM")
    await supervisor.task
    told = [event for event in events(capsys.readouterr().out) if event["event"] == "secret_file_unusable"]
    assert [(event["level"], event["url_of"]) for event in told] == [("error", "shard 9")]
    with pytest.raises(InvalidArgumentError, match=r"meta_url: password_file = .*/none cannot be used: No such file"):
        await Supervisor(config.model_copy(update={"meta_url": missing})).task


async def test_servers_that_are_not_verified_are_told_at_each_start(
    config: HostConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        # Nobody has such a name (RFC 2606).
        with pytest.raises(UnavailableError):
            await Supervisor(config.model_copy(update={"meta_url": "mysql+pymysql://root@db.invalid/meta"})).task
    told = [event for event in events(capsys.readouterr().out) if event["event"] == "database_not_verified"]
    assert [(event["level"], event["urls"]) for event in told] == [("warning", ["meta_url"])] * 2


async def test_a_start_that_fails_is_told_with_its_reason(config, capsys):
    away = config.model_copy(update={"meta_url": "mysql+pymysql://root@127.0.0.1:1/meta"})
    supervisor = Supervisor(away)
    with pytest.raises(UnavailableError):
        await supervisor.task
    last = events(capsys.readouterr().out)[-1]
    assert last["event"] == "host_stopped"
    assert last["reason"].startswith("UnavailableError: ")


async def test_a_reload_changes_the_log_level_at_once(config, capsys):
    supervisor = Supervisor(config)
    await supervisor.ready
    supervisor.wanted = config.model_copy(update={"log_level": "error", "connections_max": 7})
    supervisor.orders.reload.set()
    await until(lambda: not supervisor.orders.reload.is_set())
    logged: list[dict[str, Any]] = []

    def has_reloaded() -> bool:
        logged.extend(events(capsys.readouterr().out))
        return any(event["event"] == "configuration_reloaded" for event in logged)

    await until(has_reloaded)
    reloaded = next(event for event in logged if event["event"] == "configuration_reloaded")
    assert (reloaded["changed"], reloaded["needs_restart"]) == (["log_level"], ["connections_max"])
    await until(lambda: not structlog.get_logger().bind().is_enabled_for(logging.INFO))
    supervisor.orders.stop.set_result("SIGTERM")
    await supervisor.task
    assert events(capsys.readouterr().out) == [], "what is below the new level is not logged any more"


def test_sighup_reloads_the_file_and_neither_it_nor_a_broken_file_ends_the_host(
    meta_url: str, shard_urls: dict[int, str], tmp_path: Path
) -> None:
    file, metrics_port = tmp_path / "foqs.toml", free_port()
    shards = "".join(f'{shard_id} = "{url}"\n' for shard_id, url in shard_urls.items())
    lines = f'meta_url = "{meta_url}"\nport = {free_port()}\nmetrics_port = {metrics_port}\n'
    file.write_text(f"{lines}\n[shards]\n{shards}")
    host = Program(str(FOQS), "host", "--config", str(file), name="host")
    try:
        serves = host.wait_for_line(" serves ")
        file.write_text(f'{lines}log_level = "debug"\n[shards]\n{shards}')
        host.signal(signal.SIGHUP)
        assert '"changed": ["log_level"]' in host.wait_for_line("configuration_reloaded")
        file.write_text("this is no TOML")
        host.signal(signal.SIGHUP)
        host.wait_for_line("configuration_not_reloaded")
        assert probe(metrics_port, "/readyz") == (200, "ok\n")
        assert foqs("host-status", "--check", "--address", serves.split()[-1])
        host.signal(signal.SIGTERM)
        assert host.wait() == 0, host.output
        assert '"reason": "SIGTERM"' in host.wait_for_line("host_stopped")
    finally:
        host.close()
