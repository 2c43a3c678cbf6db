"""The database URLs of a configuration: their forms, and the problems of wrong ones.

A checked URL has the name of its password in the place of the password (foqs.storage.sessions.passwords).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BeforeValidator, TypeAdapter, ValidationError, ValidationInfo
from pydantic_settings import NoDecode
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from foqs.config_problems import ENVIRONMENT_PREFIX, redact_url
from foqs.model import limits
from foqs.storage.sessions.passwords import KEPT, is_kept, without_password
from foqs.storage.sessions.server_tls import DatabaseTls, check_verifies, is_unverified, with_name_checked, with_tls
from foqs.storage.sessions.url_options import password_problems, with_checked_options

KEYS_WITH_URLS = ("meta_url", "shards", "shard_login")
_DRIVER = "mysql+pymysql"
_DRIVERS = ("mysql", "mariadb", "mysql+pymysql", "mariadb+pymysql")


class ServerTls(NamedTuple):
    """The settings of TLS to MySQL that apply to all URLs."""

    mode: DatabaseTls = DatabaseTls.ANY
    ca_file: str = ""


def mysql_url(value: str, tls: ServerTls) -> str:
    """The URL of a database, checked. Raises ValueError with its problems."""
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
        url = _checked(value, url, tls)
    except ValueError as error:
        problems.append(str(error))
    if problems:
        raise ValueError(", and ".join(problems))
    return url.set(drivername=_DRIVER).render_as_string(hide_password=False)


def _checked(value: str, url: URL, tls: ServerTls) -> URL:
    """The URL with its options in the form of the driver, and without its password. Raises ValueError."""
    problems = []
    kept = {KEPT: url.query[KEPT]} if is_kept(url) else {}  # The URL is of another configuration of this process.
    try:
        bare = url.difference_update_query(kept).render_as_string(hide_password=False) if kept else value
        url = with_tls(with_checked_options(bare), tls.mode, tls.ca_file).update_query_dict(kept)
    except ValueError as error:
        problems.append(str(error))
    problems += password_problems(url)
    if problems:
        raise ValueError(", and ".join(problems))
    return without_password(url)


def shard_urls(value: object, tls: ServerTls) -> dict[int, str]:
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
            shards[shard_id] = mysql_url(url, tls)
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


def misfits(meta_url: str, shards: Mapping[int, str]) -> list[str]:
    """The conflicts between values that are each valid."""
    meta = _place(meta_url)
    return [
        f"meta_url and shard {number} are the same database" for number, url in shards.items() if _place(url) == meta
    ]


def login_url(value: str, tls: ServerTls) -> str:
    """Any MySQL URL: its server and database do not matter."""
    if not value:
        return ""
    try:
        url = make_url(value)
    except (ArgumentError, ValueError) as error:
        raise ValueError("is not a URL; allowed: mysql://USER:PASSWORD@HOST") from error
    if url.drivername not in _DRIVERS or re.search(r"\s", value):
        raise ValueError(f"is not a MySQL URL; allowed: mysql://USER:PASSWORD@HOST, with {', '.join(_DRIVERS)}")
    # Some of its shards can be on this machine; see `verified`.
    checked = _checked(value, url, ServerTls() if tls.mode is DatabaseTls.REMOTE else tls)
    check_verifies(checked, tls.mode)
    return checked.set(drivername=_DRIVER).render_as_string(hide_password=False)


def verified(url: str, tls: ServerTls) -> str:
    """The URL of a place, with the user and the options of a checked URL, under the settings of TLS."""
    parsed = make_url(url)
    if is_unverified(url) and tls.mode is not DatabaseTls.ANY:
        parsed = with_name_checked(parsed)  # The options are those of a URL to this machine.
    return with_tls(parsed, tls.mode, tls.ca_file).render_as_string(hide_password=False)


def has_password(value: object) -> bool:
    """True if a URL, or one of several in any form that a setting of shards has, has a password in it."""
    try:
        urls = [url for _, url in _shard_pairs(value)]
    except ValueError:
        urls = []
    for url in [*urls, str(value)]:
        with suppress(ArgumentError, ValueError):
            if make_url(url).password:
                return True
    return False


def passwords_on_command_line(flags: Mapping[str, object]) -> list[str]:
    """The problems of flags with passwords, which every user of the machine sees in the list of processes."""
    return [
        f"{key} (flag): *** has a password, and whoever lists processes can read it; allowed: the file of the "
        f"configuration, {ENVIRONMENT_PREFIX}{key.upper()}, or password_file=PATH in the URL"
        for key in KEYS_WITH_URLS
        if has_password(flags.get(key))
    ]


def passwords_in_environment(environment: Mapping[str, object]) -> list[str]:
    """The warnings of variables with passwords."""
    return [
        f"{ENVIRONMENT_PREFIX}{key.upper()} has a password, which whoever may inspect this process or its container "
        "can read: use password_file in the URL"
        for key in KEYS_WITH_URLS
        if has_password(environment.get(key))
    ]


def _server_tls(info: ValidationInfo) -> ServerTls:
    """The settings of TLS, which are checked before those with URLs."""
    values = info.data or {}
    return ServerTls(DatabaseTls(values.get("database_tls", DatabaseTls.ANY)), values.get("database_ca_file", ""))


def _meta_url(value: str, info: ValidationInfo) -> str:
    return mysql_url(value, _server_tls(info))


def _shards(value: object, info: ValidationInfo) -> dict[int, str]:
    return shard_urls(value, _server_tls(info))


def _shard_login(value: str, info: ValidationInfo) -> str:
    return login_url(value, _server_tls(info))


ShardLogin = Annotated[str, AfterValidator(_shard_login)]
MysqlUrl = Annotated[str, AfterValidator(_meta_url)]
ShardUrls = Annotated[dict[int, str], NoDecode, BeforeValidator(_shards)]


def misfits_of_some(values: Mapping[str, object]) -> list[str]:
    """Find conflicts among values, some of which are invalid by themselves."""
    try:
        meta_url = TypeAdapter(MysqlUrl).validate_python(values.get("meta_url"))
        return misfits(meta_url, TypeAdapter(ShardUrls).validate_python(values.get("shards")))
    except ValidationError:
        return []
