"""The servers at which a host logs in for shards that callers or the meta database name."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import make_url

from foqs.config import HostConfig
from foqs.model import limits
from foqs.storage.sessions.login import NamedBy
from foqs.storage.sessions.passwords import password_text
from foqs.storage.sessions.shard_places import ShardPlaces, check_pattern

META = "mysql+pymysql://app:secret@db-0.example/meta"
OWN = (META, "mysql+pymysql://app:secret@127.0.0.1:3307/s0", "mysql+pymysql://a@localhost/s1?unix_socket=/run/own.sock")


def places(*entries: str) -> ShardPlaces:
    return ShardPlaces(OWN, [check_pattern(entry) for entry in entries])


@pytest.mark.parametrize("entries", [(), ("other:1",)])
def test_what_the_configuration_names_is_named_whatever_is_listed(entries: tuple[str, ...]) -> None:
    for place in (
        "mysql://DB-0.example/new", "mysql://127.0.0.1:3307/new", "mysql://localhost/n?unix_socket=%2Frun%2Fown.sock",
    ):  # fmt: skip
        assert places(*entries).named_by(place) is NamedBy.CONFIGURATION
        assert places(*entries).may_add(place, [])


@pytest.mark.parametrize(
    ("entry", "host", "is_allowed"),
    [
        ("db-*.example:3306", "db-7.example", True),
        ("db-*.example:3306", "DB-7.EXAMPLE", True),
        ("db-*.example:3306", "db-7.rack-2.example", True),
        ("db-*.example:3306", "db-7.example.evil", False),
        ("db-*.example:3306", "xdb-7.example", False),
        ("db-?.example:3306", "db-77.example", False),
        ("db-*:3306", "db-7", True),
        ("db-*:3306", "db-7.evil.example", False),
        ("db-*.shop.*:3306", "db-7.shop.evil.example", False),
        ("10.0.7.*:3306", "10.0.7.12", True),
        ("10.0.7.*:3306", "10.0.7.evil.example", False),
        ("10.0.7.*:3306", "10.0.7.1.2", False),
        ("10.*:3306", "10.1.2.3", True),
        ("10.*:3306", "10.evil", False),
        ("1*:3306", "1evil", False),
    ],
)
def test_a_pattern_allows_what_it_is_for_and_no_name_that_a_stranger_makes(
    entry: str, host: str, is_allowed: bool
) -> None:
    listed = places(entry)
    assert listed.named_by(f"mysql://{host}/s") is (NamedBy.META if is_allowed else NamedBy.NOBODY)
    assert listed.may_add(f"mysql://{host}/s", [f"mysql://{host}/before"]) is is_allowed
    assert listed.named_by(f"mysql://{host}:3307/s") is NamedBy.NOBODY, "the port is exact"


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        ("127.0.0.1:3399", "mysql://127.0.0.1:3399/s"),
        ("[::1]:3399", "mysql://[0:0::1]:3399/s"),
        ("/run/m.sock", "mysql://localhost/s?unix_socket=%2Frun%2Fm.sock"),
        ("/run/m*.sock", "mysql://localhost/s?unix_socket=%2Frun%2Fm%2A.sock"),
    ],
)
def test_an_entry_without_wildcards_names_a_server_as_a_url_does(entry: str, place: str) -> None:
    assert places(entry).named_by(place) is NamedBy.CONFIGURATION


def test_a_pattern_names_no_server() -> None:
    assert places("127.0.0.*:3399").named_by("mysql://127.0.0.1:3399/s") is NamedBy.META


def test_a_socket_is_never_named_by_a_row() -> None:
    socket = "mysql://localhost/s?unix_socket=%2Frun%2Fother.sock"
    for entries in ((), ("localhost:3306",), ("/run/m*.sock",)):
        assert places(*entries).named_by(socket) is NamedBy.NOBODY
        assert not places(*entries).may_add(socket, [socket])


def test_without_a_list_rows_name_servers_and_callers_name_none() -> None:
    row = "mysql://db-9.example/s9"
    assert places().named_by(row) is NamedBy.META
    assert not places().may_add(row, [])
    assert not places().may_add(row, ["mysql://db-9.example:3307/s", "nonsense", ""])
    assert places().may_add(row, ["nonsense", "mysql://DB-9.example:3306/other"])


@pytest.mark.parametrize("place", ["", "nonsense", "mysql://h:x/d", "mysql://[::1/d", "mysql://[zz::1]/d"])
def test_what_is_no_place_is_named_by_nobody(place: str) -> None:
    assert places().named_by(place) is NamedBy.NOBODY
    assert not places().may_add(place, [place])


def test_the_login_of_shards_names_no_server() -> None:
    """Its server does not matter, and is often any."""
    config = HostConfig(meta_url=META, shard_login="mysql://app:secret@localhost", shard_places=["db-*.example:3306"])
    url = make_url(config.url_at("mysql://localhost/s"))
    assert (url.host, password_text(str(url)), url.query["named_by"]) == ("localhost", "secret", "nobody")


def test_the_url_of_a_place_says_who_names_its_server_and_that_of_the_configuration_nothing() -> None:
    config = HostConfig(meta_url=META, shards={0: OWN[1]}, shard_places=["db-*.example:3306"])
    assert config.url_of_shard(0, "mysql://evil/s0") == config.shards[0]
    for place, named_by in (
        ("mysql://db-0.example/s", None),
        ("mysql://db-1.example/s", "meta"),
        ("mysql://evil/s", "nobody"),
    ):
        assert make_url(config.url_of_shard(1, place)).query.get("named_by") == named_by


def test_no_configuration_can_say_it_by_itself() -> None:
    with pytest.raises(ValueError, match="named_by, which is none of foqs"):
        HostConfig(meta_url=f"{META}?named_by=meta")


def test_a_new_configuration_has_new_servers() -> None:
    config = HostConfig(meta_url=META)
    assert config.servers.named_by("mysql://db-1/s") is NamedBy.META
    changed = config.model_copy(update={"shard_places": ("db-2:3306",)})
    assert changed.servers.named_by("mysql://db-1/s") is NamedBy.NOBODY


def test_asking_for_each_of_many_shards_reads_the_configuration_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    before = ShardPlaces.__init__

    def counted(self: ShardPlaces, *arguments: object) -> None:
        nonlocal made
        made += 1
        before(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ShardPlaces, "__init__", counted)
    urls = {number: f"mysql://app:{time.time_ns()}@db/s{number}" for number in range(limits.SHARDS_PER_HOST_MAX)}
    config = HostConfig(meta_url=META, shards=urls)
    for number in range(500):
        config.url_at(f"mysql://db/x{number}")
    assert made == 1
