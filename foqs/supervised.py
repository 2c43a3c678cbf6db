"""One host under a supervisor: starts, reloads, drains and stops it as signals ask, and logs each step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version

import structlog

from foqs.background.tasks import Tasks, log_defect
from foqs.bootstrap import Host
from foqs.config import HostConfig
from foqs.logs import configure_logs
from foqs.model import limits
from foqs.model.audit import READ_SECRET_FILE, AuditNote
from foqs.model.errors import ErrorCode, InvalidArgumentError
from foqs.notify import Notifier
from foqs.reload import Reload
from foqs.storage.schema.migrations import SchemaKind, schema_version
from foqs.storage.sessions.secret_file import secret_file, take_changes
from foqs.transport.operator_port import OperatorPort

SECRET_FILES_MS = limits.SECOND_MS
"""Interval of looks for files with secrets that sessions have read anew."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Orders:
    """The orders of a supervisor to a running host.

    `stop` gets the reason to drain and stop. Each time `reload` is set, the host takes the settings that can change
    from the configuration that `load_config` returns. `load_config` is called on a thread. The supervisor hears of the
    host by `notifier`.
    """

    stop: asyncio.Future[str]
    reload: asyncio.Event
    load_config: Callable[[], HostConfig]
    notifier: Notifier = field(default_factory=Notifier)


async def run_host(config: HostConfig, orders: Orders, on_ready: Callable[[int], None]) -> None:
    """Run one host until it is ordered to stop, then drain it.

    `on_ready` gets the bound port. Raises FoqsError if the meta database cannot be reached, or the TLS options of its
    URL or a file with a secret cannot be used, MigrationError if its schema is not this version's, OSError if a port is
    taken.
    """
    configure_logs(config.log_level, config.log_format)
    _log.info("host_starting", **_introduction(config, config.port))
    began_s = time.monotonic()
    host = Host(config)
    host.metrics.introduce(version("foqs"), {kind.value: schema_version(kind) for kind in SchemaKind})
    operator_port = _operator_port(host, config)
    reason, beats = "", Tasks("beats")
    beats.every(orders.notifier.beat_ms, lambda: orders.notifier.beat(_status(host)))
    try:
        await asyncio.to_thread(_check_files, config)
        if unverified := config.unverified():
            _log.warning("database_not_verified", urls=unverified)
        await operator_port.start()
        await host.start()
        introduction = _introduction(config, host.port)
        _log.info("host_started", **introduction, shards_owned=host.owned_count, duration_ms=_ms_since(began_s))
        orders.notifier.serves(_status(host))
        on_ready(host.port)
        reason = await _serve(host, config, orders)
        orders.notifier.stops(reason)
        began_s = time.monotonic()
        await _drain(host, config.drain_ms_max, reason)
    except BaseException as error:
        reason = reason or f"{type(error).__name__}: {error}"
        raise
    finally:
        await host.stop()
        await operator_port.stop()
        await beats.stop()
        _log.info("host_stopped", host_name=config.host_name, reason=reason, duration_ms=_ms_since(began_s))


def _status(host: Host) -> str:
    """Return the state of the host in words, for a supervisor."""
    return host.condition.not_ready() or f"serves {host.owned_count} shards on port {host.port}"


def _check_files(config: HostConfig) -> None:
    """Log unusable TLS options and files with passwords of shards. Raises InvalidArgumentError for those that the host
    needs, which are those of the meta database, the token of metrics and the login at ZooKeeper.
    """
    for key in ("metrics_token_file", "membership_login_file"):
        if named := getattr(config, key):
            try:
                secret_file(named).check()
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{key}: {error.message}") from None
    of_tls, of_passwords = config.tls_problems(), config.password_problems()
    if problem := of_tls.pop("meta_url", "") or of_passwords.pop("meta_url", ""):
        raise InvalidArgumentError(f"meta_url: {problem}")
    for name, problem in of_tls.items():
        _log.error("tls_files_unusable", url_of=name, error=problem)
    for name, problem in of_passwords.items():
        _log.error("secret_file_unusable", url_of=name, error=problem)


def _operator_port(host: Host, config: HostConfig) -> OperatorPort:
    condition = host.condition
    probes = {"/livez": condition.not_live, "/readyz": condition.not_ready, "/startupz": condition.not_started}
    token = secret_file(config.metrics_token_file).read if config.metrics_token_file else None
    return OperatorPort(config.metrics_address, config.metrics_port or None, probes, host.metrics.registry, token)


async def _serve(host: Host, config: HostConfig, orders: Orders) -> str:
    """Return the reason to stop."""
    tasks = Tasks("reload")
    tasks.spawn(_reload_when_asked(host, config, orders))
    tasks.every(SECRET_FILES_MS, partial(_note_secret_files, host))
    try:
        return await orders.stop
    finally:
        await tasks.stop()


async def _note_secret_files(host: Host) -> None:
    """Record the files with secrets of which new sessions have found another version."""
    for path, problem in take_changes():
        outcome = ErrorCode.INVALID_ARGUMENT.name if problem else "OK"
        changes = f"nothing: {problem}" if problem else "another secret"
        host.note(AuditNote(READ_SECRET_FILE, outcome, subject=path, changes=changes))


async def _drain(host: Host, drain_ms_max: int, reason: str) -> None:
    _log.info("host_draining", reason=reason)
    try:
        async with asyncio.timeout(drain_ms_max / 1000):
            await host.drain()
    except TimeoutError:
        _log.warning("drain_bound_reached", drain_ms_max=drain_ms_max)


async def _reload_when_asked(host: Host, config: HostConfig, orders: Orders) -> None:
    loop = asyncio.get_running_loop()

    def note_soon(note: AuditNote) -> None:
        loop.call_soon_threadsafe(partial(host.note, note))

    reload = Reload(config, orders.load_config, note_soon)
    while True:
        await orders.reload.wait()
        orders.reload.clear()
        orders.notifier.reloads()
        try:
            config = await asyncio.to_thread(reload.run)
            configure_logs(config.log_level, config.log_format)
            host.use_urls(config)
            if host.certificates is not None:
                await host.certificates.reload()
        except Exception:  # The host keeps its settings.
            log_defect("reload")
        finally:
            orders.notifier.serves(_status(host))


def _introduction(config: HostConfig, port: int) -> dict[str, object]:
    return {
        "version": version("foqs"),
        "host_name": config.host_name,
        "port": port,
        "metrics_port": config.metrics_port,
        "shards": len(config.shards),
    }


def _ms_since(began_s: float) -> int:
    return int((time.monotonic() - began_s) * 1000)
