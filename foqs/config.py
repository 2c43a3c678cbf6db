"""The configuration of a host: flag > environment (FOQS_*) > TOML file > default.

Every problem is reported at once, each with its key, its value, its origin and the allowed values. Passwords never
leave this module in clear except inside the URLs themselves.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
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
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from foqs.cluster.members.backends import zookeeper_url
from foqs.config_problems import ENVIRONMENT_PREFIX, redact_url, sentence_of
from foqs.model import limits
from foqs.model.errors import InvalidArgumentError
from foqs.model.host_addresses import HostPort, host_problem, parse_address
from foqs.service_links import without_service_links
from foqs.storage.sessions.places import url_at
from foqs.storage.sessions.shard_places import ShardPlaces, entries_of, shard_places
from foqs.storage.sessions.url_options import check_tls, password_problems, with_checked_options

CONFIG_VARIABLE = "FOQS_CONFIG"
_DRIVER = "mysql+pymysql"
_DRIVERS = ("mysql", "mariadb", "mysql+pymysql", "mariadb+pymysql")
_ANY_PORT = 1
"""Stands for the port of an address that has none."""
_ADDRESS_PATTERN = r"^[A-Za-z0-9._:%-]{1,255}$"


class ConfigError(Exception):
    """`problems`: all problems, each a sentence."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(self.problems))


def _mysql_url(value: str) -> str:
    try:
        url = make_url(value)
    except (ArgumentError, ValueError) as error:
        raise ValueError("is not a URL; allowed: mysql://USER:PASSWORD@HOST:PORT/DATABASE") from error
    problems = []
    if url.drivername not in _DRIVERS:
        problems.append(f"names the driver {url.drivername}; allowed: {', '.join(_DRIVERS)}")
    if re.search(r"\s", value):
        problems.append("has white space in it; allowed: %20 where a part of it has some")
    if not url.database:
        problems.append("names no database; allowed: mysql://USER:PASSWORD@HOST:PORT/DATABASE")
    try:
        url = with_checked_options(value)
    except ValueError as error:
        problems.append(str(error))
    problems += password_problems(url)
    if problems:
        raise ValueError(", and ".join(problems))
    return url.set(drivername=_DRIVER).render_as_string(hide_password=False)


def _shard_urls(value: object) -> dict[int, str]:
    """`{id: url}`, the same as JSON, or `ID=URL` separated by spaces, in one string or several."""
    given = _shard_pairs(value)
    problems = [] if given or value == {} else ["names no shard; allowed: at least one ID=URL"]
    if len(given) > limits.SHARDS_PER_HOST_MAX:
        problems.append(f"names {len(given)} shards; allowed: up to {limits.SHARDS_PER_HOST_MAX} for one host")
    shards: dict[int, str] = {}
    ids_by_place: dict[str, int] = {}
    for raw_id, url in given:
        if not re.fullmatch(r"\d{1,5}", raw_id, re.ASCII) or int(raw_id) > limits.SHARD_ID_MAX:
            problems.append(f"shard id {raw_id!r:.40} is not within 0..{limits.SHARD_ID_MAX}")
            continue
        shard_id = int(raw_id)
        if shard_id in shards:
            problems.append(f"shard {shard_id} is named twice")
        try:
            shards[shard_id] = _mysql_url(url)
        except ValueError as error:
            problems.append(f"shard {shard_id}: {redact_url(url)} {error}")
            continue
        other = ids_by_place.setdefault(_place(shards[shard_id]), shard_id)
        if other != shard_id:
            problems.append(f"shards {other} and {shard_id} are the same database")
    if problems:
        raise ValueError("; ".join(problems))
    return shards


def _shard_pairs(value: object) -> list[tuple[str, str]]:
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"is not JSON: {error}") from error
    if isinstance(value, Mapping):
        return [(str(shard_id), str(url)) for shard_id, url in value.items()]
    texts = [value] if isinstance(value, str) else value
    words = " ".join(map(str, texts)).split() if isinstance(texts, list | tuple) else None
    if words is None or not all("=" in word for word in words):
        raise ValueError("is not a map; allowed: a table of ID = URL, or ID=URL separated by spaces")
    return [(shard_id, url) for shard_id, _, url in (word.partition("=") for word in words)]


def _place(url: str) -> str:
    parsed: URL = make_url(url)
    server = parsed.query.get("unix_socket") or f"{(parsed.host or 'localhost').lower()}:{parsed.port or 3306}"
    return f"{server}/{parsed.database}"


def _misfits(meta_url: str, shards: Mapping[int, str]) -> list[str]:
    """The conflicts between values that are each valid."""
    meta = _place(meta_url)
    return [
        f"meta_url and shard {number} are the same database" for number, url in shards.items() if _place(url) == meta
    ]


def _default_host_name(values: dict[str, Any]) -> str:
    # Hosts that let the kernel choose their ports must not share a name, because shards are assigned to names.
    return f"{socket.gethostname()}:{values['port'] or f'pid{os.getpid()}'}"


def _is_every_address(address: str) -> bool:
    """True if the address stands for all addresses of the machine, so that others cannot connect to it."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_unspecified
    except ValueError:
        return re.fullmatch(r"0+(\.0+)*", address) is not None  # The system accepts this form as well.


def _login_url(value: str) -> str:
    """Any MySQL URL: its server and database do not matter."""
    if not value:
        return ""
    try:
        url = make_url(value)
    except (ArgumentError, ValueError) as error:
        raise ValueError("is not a URL; allowed: mysql://USER:PASSWORD@HOST") from error
    if url.drivername not in _DRIVERS or re.search(r"\s", value):
        raise ValueError(f"is not a MySQL URL; allowed: mysql://USER:PASSWORD@HOST, with {', '.join(_DRIVERS)}")
    if problems := password_problems(url):
        raise ValueError(", and ".join(problems))
    return with_checked_options(value).set(drivername=_DRIVER).render_as_string(hide_password=False)


def _listen_address(value: str) -> str:
    if problem := host_problem(value):
        raise ValueError(f"cannot be listened on: {problem}; allowed: an IP address of this machine, or a name of one")
    return value


def _advertise_address(value: str) -> str:
    try:
        if value:
            parse_address(value, _ANY_PORT)
    except ValueError as error:
        raise ValueError(
            f"leads nowhere: {error}; allowed: ADDRESS, ADDRESS:PORT or [V6 ADDRESS]:PORT by which others reach it"
        ) from None
    return value


def _membership_url(value: str) -> str:
    return str(zookeeper_url.parse(value)) if value else ""


MembershipUrl = Annotated[str, AfterValidator(_membership_url)]
ListenAddress = Annotated[str, Field(pattern=_ADDRESS_PATTERN), AfterValidator(_listen_address)]
AdvertiseAddress = Annotated[str, AfterValidator(_advertise_address)]
ShardLogin = Annotated[str, AfterValidator(_login_url)]
MysqlUrl = Annotated[str, AfterValidator(_mysql_url)]
ShardUrls = Annotated[dict[int, str], NoDecode, BeforeValidator(_shard_urls)]
ServerEntries = Annotated[tuple[str, ...], NoDecode, BeforeValidator(entries_of)]
Port = Annotated[int, Field(ge=0, le=65_535)]


class HostConfig(BaseModel):
    """The configuration of one host. Its constructor reads no flag, variable or file; see load_config."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

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
        description="zookeeper://HOST:PORT,HOST:PORT/PATH, by which the hosts of the cluster find each other; the same "
        "for all hosts (default: the meta database)",
    )
    listen_address: ListenAddress = Field(default="127.0.0.1", description="address to listen on")
    port: Port = Field(default=7600, description="port to listen on; 0 lets the kernel choose")
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

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_truth_value(cls, value: object, info: ValidationInfo) -> object:
        """Refuse a bool for a number, because Python takes `port = true` for port 1."""
        if isinstance(value, bool) and cls.model_fields[info.field_name or ""].annotation is not bool:
            raise PydanticCustomError("truth_value", "a number or a text")
        return value

    @model_validator(mode="after")
    def _meta_is_no_shard(self) -> HostConfig:
        if misfits := _misfits(self.meta_url, self.shards):
            raise ValueError("; ".join(misfits))
        return self

    def advertised(self, port: int) -> str:
        """The address and the port at which others reach this host, which listens on `port`; empty if unknown.

        It is unknown for a host that listens on every address of its machine.
        """
        if self.advertise_address:
            found = parse_address(self.advertise_address, port or _ANY_PORT)
        else:
            found = HostPort(self.listen_address, port)
        return "" if _is_every_address(found.host) else str(found)

    def url_of_shard(self, shard_id: int, place: str) -> str:
        """The URL of a shard: the one of this configuration, or else its place with the user of all shards."""
        return self.shards.get(shard_id) or self.url_at(place)

    def url_at(self, place: str) -> str:
        """The URL of a place for the user of all shards that are not named here.

        If hosts must not log in there, no session can be opened by it.
        """
        return url_at(place, self.shard_login or self.meta_url, self.servers.named_by(place))

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

    def warnings(self) -> list[str]:
        """Warnings of values that are valid, but wrong in many clusters or on this machine."""
        warnings = [f"{name}: {problem}" for name, problem in self.tls_problems().items()]
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


def load_config(flags: Mapping[str, object] | None = None, path: str | Path | None = None) -> LoadedConfig:
    """The effective configuration. A flag that is None was not given.

    `path` defaults to the value of FOQS_CONFIG. Without a path no file is read; a missing file is a problem. Raises
    ConfigError with all problems.
    """
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
    cause: ValidationError | None = None
    try:
        config = HostConfig.model_validate(values)
    except ValidationError as error:
        cause = error
        # Ignore a default that depends on an invalid value, and values that the unreadable file may have.
        ignored = ("default_factory_not_called", "missing" if problems else "")
        problems += [
            sentence_of(detail, origins, HostConfig.model_fields)
            for detail in error.errors()
            if detail["type"] not in ignored
        ]
        problems += [misfit for misfit in _misfits_of_some(values) if misfit not in "; ".join(problems)]
    if problems:
        raise ConfigError(problems) from cause
    return LoadedConfig(config, origins, partial(load_config, flags, path), warnings)


def _misfits_of_some(values: Mapping[str, object]) -> list[str]:
    """Find conflicts among values, some of which are invalid by themselves."""
    try:
        meta_url = TypeAdapter(MysqlUrl).validate_python(values.get("meta_url"))
        return _misfits(meta_url, TypeAdapter(ShardUrls).validate_python(values.get("shards")))
    except ValidationError:
        return []


def _read_file(path: Path) -> tuple[list[str], dict[str, Any]]:
    """The problems and the values."""
    try:
        with path.open("rb") as file:
            return [], tomllib.load(file)
    except OSError as error:
        return [f"configuration file {path}: {error.strerror}"], {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return [f"configuration file {path} is not TOML: {error}"], {}
