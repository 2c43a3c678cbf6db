"""The open doors of a host: settings, files and rows of the meta database that leave something unprotected.

`foqs config check --protected` names them. They are measured against the promises of docs/security.md, which hold once
access is enforced and TLS is required.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from sqlalchemy import make_url

from foqs.cluster.members.backends import zookeeper_url
from foqs.config import HostConfig, LoadedConfig
from foqs.model.access import AccessMode
from foqs.model.cluster import ShardRow, ShardUse
from foqs.model.errors import InvalidArgumentError
from foqs.model.host_addresses import is_loopback, parse_address
from foqs.storage.sessions.login import NamedBy
from foqs.storage.sessions.passwords import FILE, is_kept
from foqs.storage.sessions.places import server_at
from foqs.storage.sessions.secret_file import path_of
from foqs.storage.sessions.server_tls import is_unverified

_SECRET: Final = stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH
"""The bits of a mode by which a secret is not one, as foqs.storage.sessions.secret_file refuses them."""
_TRUSTED: Final = stat.S_IWGRP | stat.S_IWOTH
"""The bits of a mode by which others can change the files that hosts trust."""
_PRIVATE_DIRECTORY: Final = stat.S_IWGRP | stat.S_IRWXO
_FILES_OF_URLS: Final = {FILE: _SECRET, "ssl_key": _SECRET, "ssl_cert": _TRUSTED, "ssl_ca": _TRUSTED}
_FILES: Final = {
    "tls_key_file": _SECRET, "metrics_token_file": _SECRET, "membership_login_file": _SECRET,
    "membership_key_file": _SECRET, "tls_cert_file": _TRUSTED, "tls_ca_file": _TRUSTED, "database_ca_file": _TRUSTED,
    "membership_cert_file": _TRUSTED, "membership_ca_file": _TRUSTED, "event_log_dir": _PRIVATE_DIRECTORY,
    "peer_key_file": _SECRET, "peer_cert_file": _TRUSTED, "peer_ca_file": _TRUSTED,
}  # fmt: skip
"""The bits that must not be set in the mode of each file."""


class Door(NamedTuple):
    """One open door, for people."""

    setting: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.setting}: {self.problem}; {self.remedy}"


def open_settings(config: HostConfig) -> Iterator[Door]:
    """Yield the doors that the settings leave open by themselves."""
    if config.tls != "required":
        plain = "all connections are plain" if config.tls == "off" else "callers can connect without TLS"
        yield Door("tls", f"{config.tls}, so {plain}", "set tls = required")
    if config.allow_open:
        yield Door("allow_open", "true, so the host starts even if access is not enforced", "set allow_open = false")
    if config.tokens_without_tls:
        yield Door("tokens_without_tls", "true, so tokens are taken where others can read them", "set it to false")
    if config.peer_certificates != "required":
        problem = f"{config.peer_certificates}, so who knows the secret of the cluster is a host without a certificate"
        yield Door("peer_certificates", problem, "set peer_certificates = required once all hosts show theirs")
    if not config.peer_port and not is_loopback(config.listen_address):
        problem = "0, so whoever reaches the port for clients can also try to be a host"
        yield Door("peer_port", problem, "set peer_port, and let a firewall admit hosts alone to it")
    yield from _of_metrics(config)
    yield from _of_databases(config)
    yield from _of_zookeeper(config)


def _of_metrics(config: HostConfig) -> Iterator[Door]:
    if config.metrics_open:
        yield Door(
            "metrics_open",
            "true, so the host starts even if other machines read its metrics without a token",
            "set metrics_open = false, and metrics_token_file",
        )
    elif config.metrics_port and not config.metrics_token_file and not is_loopback(config.metrics_address):
        yield Door(
            "metrics_token_file",
            f"not set, so everybody who reaches {config.metrics_address} reads names of namespaces and words of MySQL",
            "set it to a file with a token, or set metrics_address = 127.0.0.1",
        )


def _of_databases(config: HostConfig) -> Iterator[Door]:
    for name in config.unverified():
        yield Door(
            "database_tls",
            f"{config.database_tls}, so whoever answers for the server of {name} on another machine is believed",
            "set database_tls = verify, and database_ca_file",
        )
    for name, text in config.urls().items():
        url = make_url(text)
        if is_kept(url):
            yield Door(
                name,
                "the URL has the password in it, and whoever reads the configuration can log in",
                "take it out, and set the option password_file",
            )
        elif not {FILE, "unix_socket", "ssl_cert"} & url.query.keys():
            yield Door(
                name,
                "the user logs in by TCP without a password and without a certificate",
                "give the user a password, and set the option password_file",
            )
    if not config.shard_places:
        yield Door(
            "shard_places",
            "not set, so whoever writes to the meta database decides at which servers hosts log in",
            "set it to the servers of shards, such as db-*.example:3306",
        )


def _of_zookeeper(config: HostConfig) -> Iterator[Door]:
    if not config.membership:
        return
    ensemble = zookeeper_url.parse(config.membership)
    if all(is_loopback(parse_address(server).host) for server in ensemble.servers):
        return
    if not ensemble.is_tls:
        yield Door(
            "membership",
            "ZooKeeper is on another machine and reached without TLS, so others can hide or invent hosts",
            f"set membership = {zookeeper_url.TLS_SCHEME}://..., and membership_ca_file",
        )
    if not config.membership_login_file and not config.membership_cert_file:
        yield Door(
            "membership_login_file",
            "not set, so whoever reaches ZooKeeper can hide or invent hosts",
            "set it to a file with NAME:PASSWORD, or set membership_cert_file",
        )


def open_access(mode: AccessMode) -> Iterator[Door]:
    """Yield the door that the mode in the meta database leaves open."""
    if mode is not AccessMode.ENFORCED:
        yield Door(
            "access",
            f"{mode.name.lower()} in the meta database, so calls that are not permitted are done",
            "make an administrator by foqs access init, and run foqs access mode enforced",
        )


def open_places(config: HostConfig, shards: Iterable[ShardRow]) -> Iterator[Door]:
    """Yield the doors to servers that only rows of the meta database name, one for each server."""
    used = (row for row in shards if row.place and row.use is not ShardUse.REMOVED)
    places = {row.place for row in used if row.shard_id not in config.shards or row.is_relocated}
    allowed = [place for place in places if config.servers.named_by(place) is not NamedBy.NOBODY]
    for server in sorted({server_at(place) for place in allowed if is_unverified(config.url_at(place))}):
        yield Door(
            "database_tls",
            f"{config.database_tls}, so whoever answers for {server}, which has shards, is believed",
            "set database_tls = verify, and database_ca_file",
        )


class FileReport(NamedTuple):
    """`unknown` has a sentence for each file whose mode could not be read."""

    doors: list[Door]
    unknown: list[str]


def open_files(loaded: LoadedConfig) -> FileReport:
    """Find the files of a configuration that others can read or change. Reads their modes alone."""
    report = FileReport([], [])
    seen: set[str] = set()
    for setting, named, bits in _files_of(loaded):
        if named in seen:
            continue  # Many URLs share one file.
        seen.add(named)
        try:
            mode = os.stat(path_of(named)).st_mode
        except InvalidArgumentError as error:
            report.unknown.append(f"{setting}: {error.message}")
        except OSError as error:
            report.unknown.append(f"{setting}: the mode of {named} cannot be read: {error.strerror}")
        else:
            report.doors.extend(_of_mode(setting, named, mode, bits))
    return report


def _files_of(loaded: LoadedConfig) -> Iterator[tuple[str, str, int]]:
    """Yield setting, path and unwanted bits of each file, secrets first, as one file can have key and certificate."""
    config = loaded.config
    found: list[tuple[str, str, int]] = []
    if loaded.path:
        found.append(("configuration", loaded.path, _SECRET if _has_password_in_file(loaded) else _TRUSTED))
    found += [(key, getattr(config, key), bits) for key, bits in _FILES.items()]
    for name, text in config.urls().items():
        query = make_url(text).query
        found += [(f"{option} of {name}", str(query.get(option, "")), bits) for option, bits in _FILES_OF_URLS.items()]
        if "ssl_key" not in query:  # The key is in the file of the certificate.
            found.append((f"ssl_cert of {name}", str(query.get("ssl_cert", "")), _SECRET))
    if not config.membership_key_file:
        found.append(("membership_cert_file", config.membership_cert_file, _SECRET))
    yield from sorted((one for one in found if one[1]), key=lambda one: one[2] == _TRUSTED)


def _has_password_in_file(loaded: LoadedConfig) -> bool:
    """True if the file of the configuration has a URL with a password in it."""
    with_passwords = [name for name, url in loaded.config.urls().items() if is_kept(make_url(url))]
    keys = {"shards" if name.startswith("shard ") else name for name in with_passwords}
    return any(loaded.origins[key].startswith("file ") for key in keys)


def _of_mode(setting: str, named: str, mode: int, bits: int) -> Iterator[Door]:
    if not mode & bits:
        return
    can_write = mode & bits & (stat.S_IWGRP | stat.S_IWOTH)
    wanted = stat.S_IMODE(mode) & ~bits
    yield Door(
        setting,
        f"{named} has mode {stat.S_IMODE(mode):04o}, so others can {'change' if can_write else 'read'} it",
        f"chmod {wanted:04o} {named}",
    )
