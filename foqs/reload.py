"""The settings that a running host takes when its configuration is read again.

They are the log level, the passwords of URLs, TLS to databases, and the servers at which hosts are permitted to log in
for shards. All other settings wait for the next start. An unusable value never replaces a working one.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from foqs.config import ConfigError, HostConfig
from foqs.model.audit import RELOAD_CONFIGURATION, AuditNote
from foqs.model.errors import ErrorCode, InvalidArgumentError
from foqs.storage.sessions.session import database_and_user
from foqs.storage.sessions.url_options import check_password_file, check_tls

_log = structlog.get_logger(__name__)


class Reload:
    """The reloads of one host. `load` reads the configuration again and raises ConfigError.

    `note` takes each reload and each refusal of one, for the audit, on the thread of the reload.
    """

    def __init__(
        self,
        config: HostConfig,
        load: Callable[[], HostConfig],
        note: Callable[[AuditNote], None] = lambda note: None,
    ) -> None:
        self._config = config
        self._load = load
        self._note = note

    def run(self) -> HostConfig:
        """Return the new configuration: the one before, with the settings that can change. Blocks while files are
        read.
        """
        try:
            wanted = self._load()
        except ConfigError as error:
            _log.error("configuration_not_reloaded", problems=error.problems)
            self._refused("configuration", "; ".join(error.problems))
            return self._config
        before = self._config
        taken: dict[str, object] = {"log_level": wanted.log_level, "shard_places": wanted.shard_places}
        # The default of database_tls follows tls, which waits for the next start, and the URLs follow database_tls.
        if wanted.tls == before.tls or wanted.database_tls == before.database_tls:
            taken |= self._of_databases(before, wanted)
        after = before.model_copy(update=taken)
        self._config = after
        changed, needs_restart = _differences(before, after), _differences(after, wanted)
        _log.info("configuration_reloaded", changed=changed, needs_restart=needs_restart)
        said = f"changed={','.join(changed)} needs_restart={','.join(needs_restart)}"
        self._note(AuditNote(RELOAD_CONFIGURATION, subject="configuration", changes=said))
        return after

    def _of_databases(self, before: HostConfig, wanted: HostConfig) -> dict[str, object]:
        """Return the settings of databases that can change."""
        shards = {
            shard_id: self._url_of(f"shard {shard_id}", url, wanted.shards.get(shard_id, ""))
            for shard_id, url in before.shards.items()
        }
        taken: dict[str, object] = {
            "database_tls": wanted.database_tls,
            "database_ca_file": wanted.database_ca_file,
            "meta_url": self._url_of("meta_url", before.meta_url, wanted.meta_url),
            "shards": shards,
        }
        if before.shard_login:
            taken["shard_login"] = self._url_of("shard_login", before.shard_login, wanted.shard_login)
        return taken

    def _url_of(self, name: str, url: str, wanted: str) -> str:
        """The URL with the password and TLS options of `wanted`, if it is for the same user of the same database.

        The next session shows if the server accepts the password. Open sessions stay.
        """
        if not wanted or database_and_user(wanted) != database_and_user(url):
            wanted = url
        try:
            check_tls(wanted)
        except InvalidArgumentError as error:
            _log.error("tls_files_unusable", url_of=name, error=error.message)
            self._refused(name, error.message)
            return url
        try:
            check_password_file(wanted)
        except InvalidArgumentError as error:
            _log.error("secret_file_unusable", url_of=name, error=error.message)
            self._refused(name, error.message)
            return url
        return wanted

    def _refused(self, subject: str, problem: str) -> None:
        """Note that the values before stay."""
        outcome = ErrorCode.INVALID_ARGUMENT.name
        self._note(AuditNote(RELOAD_CONFIGURATION, outcome, subject=subject, changes=f"nothing: {problem}"))


def _differences(one: HostConfig, other: HostConfig) -> list[str]:
    """The keys with different values; some values are secret."""
    return [key for key in HostConfig.model_fields if getattr(one, key) != getattr(other, key)]
