"""The configuration of a host: flag > environment (FOQS_*) > TOML file > default.

Every problem is reported at once, each with its key, its value, its origin and the allowed values. The URLs of a
checked configuration have no passwords in them (foqs.storage.sessions.passwords).
"""

from __future__ import annotations

import os
import socket
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    SettingsConfigDict,
)

from foqs.cluster.members.backends.zookeeper_url import ZookeeperAccess
from foqs.config_addresses import AdvertiseAddress, ListenAddress, MembershipUrl, advertised_of, port_problems_of
from foqs.config_problems import ENVIRONMENT_PREFIX, redact_url, sentence_of
from foqs.config_tls import tls_files_of, tls_problems_of, zookeeper_problems_of
from foqs.config_urls import (
    MysqlUrl,
    ServerTls,
    ShardLogin,
    ShardUrls,
    misfits,
    misfits_of_some,
    passwords_in_environment,
    verified,
)
from foqs.model import limits
from foqs.model.errors import InvalidArgumentError
from foqs.service_links import without_service_links
from foqs.storage.sessions.places import place_of, url_at
from foqs.storage.sessions.secret_file import secret_file
from foqs.storage.sessions.server_tls import DatabaseTls, is_unverified
from foqs.storage.sessions.shard_places import ShardPlaces, entries_of, shard_places
from foqs.storage.sessions.url_options import check_password_file, check_tls
from foqs.transport.tls.contexts import TlsFiles

CONFIG_VARIABLE = "FOQS_CONFIG"
_SECRET_PATTERN = r"^(|/.*|\$CREDENTIALS_DIRECTORY/.+)$"


class ConfigError(Exception):
    """`problems`: all problems, each a sentence."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(self.problems))


def _default_host_name(values: dict[str, Any]) -> str:
    # Hosts that let the kernel choose their ports must not share a name, because shards are assigned to names.
    return f"{socket.gethostname()}:{values['port'] or f'pid{os.getpid()}'}"


ServerEntries = Annotated[tuple[str, ...], NoDecode, BeforeValidator(entries_of)]
FilePath = Annotated[str, Field(pattern=r"^(|/.*)$")]
Port = Annotated[int, Field(ge=0, le=65_535)]


class HostConfig(BaseModel):
    """The configuration of one host. Its constructor reads no flag, variable or file; see load_config."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    # These two stand before the URLs, because they change them.
    database_tls: Literal["verify", "remote", "any"] = Field(
        default="any",
        description="verify: the certificate of every MySQL server that is reached by TCP is verified, and there is no "
        "session without; remote: the same for servers on other machines, which is the default where tls is required; "
        "any: as the options of each URL say",
    )
    database_ca_file: FilePath = Field(
        default="",
        description="file with the certificates of the authorities (PEM) for database_tls = verify or remote, by "
        "its full path; a URL with ssl_ca or ssl_capath has its own (default: those of the system)",
    )

    meta_url: MysqlUrl = Field(description="MySQL URL of the meta database, shared by all hosts of the cluster")
    shards: ShardUrls = Field(
        default_factory=dict,
        description="MySQL URLs of shards, by shard id, which this host adds to the cluster; it reads other shards "
        "from the meta database",
    )
    shard_login: ShardLogin = Field(
        default="",
        description="MySQL URL with the user, password and TLS options for shards that are not named in shards "
        "(default: those of meta_url)",
    )
    shard_places: ServerEntries = Field(
        default_factory=tuple,
        description="allowed servers of shards, beside those that meta_url and shards name: HOST:PORT, with * and ? "
        "in HOST as in fnmatch, or the path of a socket; separated by spaces in a flag or variable (default: "
        "those that the meta database names)",
    )
    membership: MembershipUrl = Field(
        default="",
        description="zookeeper://HOST:PORT,HOST:PORT/PATH, or zookeeper+tls:// with the same, by which hosts of the "
        "cluster find each other; the same for all hosts (default: the meta database)",
    )
    membership_ca_file: FilePath = Field(
        default="",
        description="file with the certificates of the authorities (PEM) by which ZooKeeper is verified, by its full "
        "path (default: those of the system)",
    )
    membership_cert_file: FilePath = Field(
        default="", description="file with the certificate that this host shows to ZooKeeper (PEM), by its full path"
    )
    membership_key_file: FilePath = Field(
        default="",
        description="file with the key of membership_cert_file, without a pass phrase, if it is not in the same file",
    )
    membership_login_file: str = Field(
        default="",
        pattern=_SECRET_PATTERN,
        description="file with NAME:PASSWORD, by which hosts log in to ZooKeeper; nobody else can then use their nodes",
    )
    listen_address: ListenAddress = Field(default="127.0.0.1", description="address to listen on")
    port: Port = Field(default=7600, description="port to listen on; 0 lets the kernel choose")
    peer_port: Port = Field(
        default=0,
        description="port on which other hosts call this one, and nobody else; port then serves clients alone. 0: "
        "hosts use the same port as clients",
    )
    advertise_address: AdvertiseAddress = Field(
        default="",
        pattern=r"^(|\[?[A-Za-z0-9._:%-]{1,200}\]?(:\d{1,5})?)$",
        description="address, or ADDRESS:PORT, by which clients and other hosts reach this one; needed in a cluster "
        "with listen_address 0.0.0.0 or :: (default: what it listens on)",
    )
    tier: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9._-]{0,64}$",
        description="tier of this host; it serves the shards of the same tier",
    )
    host_name: str = Field(
        default_factory=_default_host_name,
        pattern=r"^[A-Za-z0-9._:-]{1,112}$",
        description="name of this host, unique in its cluster (default: system name and port)",
    )
    cluster: str = Field(
        default="foqs",
        pattern=r"^[A-Za-z0-9._-]{1,40}$",
        description="name of the cluster; part of the lock that makes a host the owner of a shard",
    )
    metrics_address: ListenAddress = Field(default="127.0.0.1", description="address to serve metrics and probes on")
    metrics_port: Port = Field(default=0, description="port to serve metrics and probes on; 0 serves none")
    metrics_token_file: str = Field(
        default="",
        pattern=_SECRET_PATTERN,
        description="file with the token that readers of metrics have to show, by its full path; without the token the "
        "probes tell no reasons (default: no token is needed)",
    )
    metrics_open: bool = Field(
        default=False,
        description="serve metrics beyond this machine without metrics_token_file although access is enforced, so that "
        "everybody who reaches metrics_port reads names of namespaces and words of MySQL",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="lowest level that is logged"
    )
    log_format: Literal["json", "console"] = Field(default="json", description="json for machines, console for people")
    allow_undurable_servers: bool = Field(
        default=False, description="serve shards whose MySQL server can lose acknowledged commits"
    )
    connections_max: int = Field(
        default=limits.CONNECTIONS_MAX,
        ge=1,
        le=1_000_000,
        description="maximum number of client connections; fewer if the system allows fewer open files",
    )
    connections_per_address_max: int = Field(
        default=limits.CONNECTIONS_PER_ADDRESS_MAX,
        ge=1,
        le=1_000_000,
        description="maximum number of connections from one client address",
    )
    tokens_without_tls: bool = Field(
        default=False,
        description="take tokens over plain connections from other machines, too, where whoever listens can read them",
    )
    allow_open: bool = Field(
        default=False,
        description="listen beyond this machine although access is not enforced, so that everybody who reaches the "
        "port can use and administer every namespace",
    )
    tls: Literal["off", "accepted", "required"] = Field(
        default="off", description="whether callers use TLS on the port; accepted serves plain connections as well"
    )
    tls_cert_file: FilePath = Field(default="", description="certificate of this host in PEM, with its intermediates")
    tls_key_file: FilePath = Field(
        default="", description="key of tls_cert_file in PEM, without a pass phrase; nobody else may read the file"
    )
    tls_ca_file: FilePath = Field(
        default="",
        description="authorities in PEM of the certificates of clients and other hosts (default for hosts: those of "
        "the system)",
    )
    tls_clients: Literal["none", "wanted", "required"] = Field(
        default="none", description="whether callers show a certificate of tls_ca_file in the handshake"
    )
    tls_min: Literal["1.2", "1.3"] = Field(default="1.2", description="lowest version of TLS that is spoken")
    tls_to_peers: bool = Field(
        default=False,
        description="call other hosts by TLS, which all must accept; always so if tls is required",
    )
    peer_ca_file: FilePath = Field(
        default="",
        description="authorities in PEM of the certificates by which hosts know each other; each names its host by the "
        "URI foqs://CLUSTER/host/HOST_NAME (default: hosts know each other by the secret of the cluster alone)",
    )
    peer_cert_file: FilePath = Field(
        default="",
        description="certificate of peer_ca_file for this host in PEM, with its intermediates (default: tls_cert_file)",
    )
    peer_key_file: FilePath = Field(default="", description="key of peer_cert_file, as tls_key_file")
    peer_certificates: Literal["accepted", "shown", "required"] = Field(
        default="required",
        description="with peer_ca_file: accepted takes the certificates of hosts that call and shows none; shown calls "
        "all hosts by certificate, and takes calls without; required refuses hosts without",
    )
    idle_ms_max: int = Field(
        default=limits.IDLE_MS_MAX,
        ge=2 * limits.WAIT_MS_MAX,
        le=limits.DAY_MS,
        description="close a connection after this long without a call",
    )
    transactions_per_server_max: int = Field(
        default=limits.TRANSACTIONS_PER_SERVER_MAX,
        ge=1,
        le=limits.SHARDS_PER_HOST_MAX,
        description="maximum number of this host's transactions on one MySQL server at a time, for any number of "
        "shards; some large ones may run beside them",
    )
    drain_ms_max: int = Field(
        default=limits.DRAIN_MS_MAX,
        ge=0,
        le=600_000,
        description="time to finish accepted work on shutdown",
    )

    event_log_dir: str = Field(
        default="",
        pattern=r"^(|/.*)$",
        description="directory of this host's event log, by its full path, for no other host; none is kept without one",
    )
    event_log_bytes_max: int = Field(
        default=10 * 1024 * limits.MIB,
        ge=16 * limits.MIB,
        le=1 << 50,
        description="maximum size of all files below event_log_dir; the oldest are removed",
    )
    event_log_days: int = Field(
        default=30, ge=1, le=3_650, description="days after which files of the event log are removed"
    )

    @model_validator(mode="before")
    @classmethod
    def _verifies_databases_where_callers_need_tls(cls, values: Any) -> Any:
        """Set the default of database_tls, which is checked before tls."""
        if isinstance(values, dict) and values.get("tls") == "required":
            return {"database_tls": DatabaseTls.REMOTE.value, **values}
        return values

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_truth_value(cls, value: object, info: ValidationInfo) -> object:
        """Refuse a bool for a number, because Python takes `port = true` for port 1."""
        if isinstance(value, bool) and cls.model_fields[info.field_name or ""].annotation is not bool:
            raise PydanticCustomError("truth_value", "a number or a text")
        return value

    @model_validator(mode="after")
    def _meta_is_no_shard(self) -> HostConfig:
        found = misfits(self.meta_url, self.shards)
        if self.database_ca_file and self.database_tls == "any":
            found.append(
                "database_ca_file is set, and database_tls = any does not use it; allowed: verify, remote, or no file"
            )
        if found:
            raise ValueError("; ".join(found))
        return self

    @model_validator(mode="after")
    def _tls_is_whole(self) -> HostConfig:
        if problems := [*port_problems_of(self), *tls_problems_of(self), *zookeeper_problems_of(self)]:
            raise ValueError("; ".join(problems))
        return self

    @property
    def membership_access(self) -> ZookeeperAccess:
        """The files and the login for ZooKeeper."""
        login = secret_file(self.membership_login_file).read if self.membership_login_file else None
        return ZookeeperAccess(self.membership_ca_file, self.membership_cert_file, self.membership_key_file, login)

    @property
    def tls_files(self) -> TlsFiles | None:
        """The certificates of the port and of hosts; None without TLS."""
        return tls_files_of(self)

    @property
    def calls_peers_by_tls(self) -> bool:
        """True if connections to other hosts are encrypted."""
        return self.tls_to_peers or self.tls == "required" or self.calls_peers_by_certificate

    @property
    def calls_peers_by_certificate(self) -> bool:
        """True if this host shows its certificate to other hosts, and wants theirs."""
        return bool(self.peer_ca_file) and self.peer_certificates != "accepted"

    @property
    def needs_peer_certificates(self) -> bool:
        """True if other hosts are refused without a certificate."""
        return bool(self.peer_ca_file) and self.peer_certificates == "required"

    def advertised(self, port: int) -> str:
        """The address and the port at which others reach this host, which listens on `port`; empty if unknown.

        It is unknown for a host that listens on every address of its machine.
        """
        return advertised_of(self, port)

    def url_of_shard(self, shard_id: int, place: str, *, is_relocated: bool = False) -> str:
        """The URL of a shard: the one of this configuration, or else its place with the user of all shards.

        The URL of a relocated shard leads to its place in any case, with the user of a configured URL of that place.
        """
        configured = self.shards.get(shard_id)
        if is_relocated:
            configured = next((url for url in self.shards.values() if place_of(url) == place), None)
        return configured or self.url_at(place)

    def url_at(self, place: str) -> str:
        """The URL of a place for the user of all shards that are not named here.

        If hosts must not log in there, no session can be opened by it.
        """
        url = url_at(place, self.shard_login or self.meta_url, self.servers.named_by(place))
        return verified(url, ServerTls(DatabaseTls(self.database_tls), self.database_ca_file))

    @property
    def servers(self) -> ShardPlaces:
        """The servers of shards that this configuration allows."""
        return shard_places((self.meta_url, *self.shards.values()), self.shard_places)

    def urls(self) -> dict[str, str]:
        """The URLs of databases by their names for people, without those that are not set."""
        urls = {"meta_url": self.meta_url, "shard_login": self.shard_login}
        urls |= {f"shard {shard_id}": url for shard_id, url in sorted(self.shards.items())}
        return {name: url for name, url in urls.items() if url}

    def tls_problems(self) -> dict[str, str]:
        """The reasons that TLS options cannot be used on this machine, by the names of their URLs. Reads files."""
        # Check equal options once, because reading their files takes milliseconds and many shards share them.
        found: dict[str, str] = {}
        urls = self.urls()
        for options, url in {url.partition("?")[2]: url for url in urls.values()}.items():
            try:
                check_tls(url)
            except InvalidArgumentError as error:
                found[options] = error.message
        problems = {name: found.get(url.partition("?")[2], "") for name, url in urls.items()}
        return {name: problem for name, problem in problems.items() if problem}

    def password_problems(self) -> dict[str, str]:
        """The reasons that files with passwords cannot be used, by the names of their URLs. Reads files."""
        problems: dict[str, str] = {}
        for name, url in self.urls().items():
            try:
                check_password_file(url)
            except InvalidArgumentError as error:
                problems[name] = error.message
        return problems

    def unverified(self) -> list[str]:
        """The names of the URLs whose server is on another machine and is not verified."""
        return [name for name, url in self.urls().items() if name != "shard_login" and is_unverified(url)]

    def warnings(self) -> list[str]:
        """Warnings of values that are valid, but wrong in many clusters or on this machine."""
        problems = [*self.tls_problems().items(), *self.password_problems().items()]
        warnings = [f"{name}: {problem}" for name, problem in problems]
        if not self.advertised(self.port):
            key = "advertise_address" if self.advertise_address else "listen_address"
            warnings.append(
                f"{key} = {getattr(self, key)} is every address of this machine, and tells other hosts none by which "
                "they reach it: set advertise_address to its name or address, unless it is to be the only host of its "
                "cluster"
            )
        return warnings

    def redacted(self) -> dict[str, Any]:
        """All values, without passwords, for people."""
        values = self.model_dump()
        values["meta_url"] = redact_url(self.meta_url)
        values["shard_login"] = redact_url(self.shard_login) if self.shard_login else ""
        values["shard_places"] = " ".join(self.shard_places)
        values["shards"] = {shard_id: redact_url(url) for shard_id, url in sorted(self.shards.items())}
        return values


class _Environment(BaseSettings, HostConfig):
    """HostConfig for pydantic-settings, which reads the environment by its fields."""

    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX)


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """`origins`: the origin of each value, by key. `again` loads the same flags and file again."""

    config: HostConfig
    origins: dict[str, str]
    again: Callable[[], LoadedConfig]
    warnings: list[str] = field(default_factory=list)
    """Warnings of variables that have the name of a setting, but are none."""
    path: str = ""
    """The full path of the file, if one was read."""


def load_config(flags: Mapping[str, object] | None = None, path: str | Path | None = None) -> LoadedConfig:
    """The effective configuration. A flag that is None was not given.

    `path` defaults to the value of FOQS_CONFIG. Without a path no file is read; a missing file is a problem. Raises
    ConfigError with all problems.
    """
    # The values of the error's frames are no secrets, as those of `_load` can be.
    loaded = _load(flags, path)
    if not isinstance(loaded, LoadedConfig):
        raise ConfigError(loaded)
    return loaded


def _load(flags: Mapping[str, object] | None, path: str | Path | None) -> LoadedConfig | list[str]:
    """The effective configuration, or its problems."""
    named = path or os.environ.get(CONFIG_VARIABLE)
    problems, from_file = _read_file(Path(named)) if named else ([], {})
    environment, warnings = without_service_links(EnvSettingsSource(_Environment)(), ENVIRONMENT_PREFIX)
    layers: list[tuple[str, Mapping[str, object]]] = [
        (f"file {named}", from_file),
        ("environment", environment),
        ("flag", {key: value for key, value in (flags or {}).items() if value is not None}),
    ]
    values: dict[str, object] = {}
    origins = dict.fromkeys(HostConfig.model_fields, "default")
    for origin, layer in layers:
        values |= layer
        origins |= dict.fromkeys(layer, origin)
    try:
        config = HostConfig.model_validate(values)
    except ValidationError as error:
        # Ignore a default that depends on an invalid value, and values that the unreadable file possibly has.
        ignored = ("default_factory_not_called", "missing" if problems else "")
        problems += [
            sentence_of(detail, origins, HostConfig.model_fields)
            for detail in error.errors()
            if detail["type"] not in ignored
        ]
        problems += [misfit for misfit in misfits_of_some(values) if misfit not in "; ".join(problems)]
    if problems:
        return problems
    warnings += passwords_in_environment(environment)
    file = str(Path(named).absolute()) if named else ""
    return LoadedConfig(config, origins, partial(load_config, flags, path), warnings, file)


def _read_file(path: Path) -> tuple[list[str], dict[str, Any]]:
    """The problems and the values."""
    try:
        with path.open("rb") as file:
            return [], tomllib.load(file)
    except OSError as error:
        return [f"configuration file {path}: {error.strerror}"], {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return [f"configuration file {path} is not TOML: {error}"], {}
