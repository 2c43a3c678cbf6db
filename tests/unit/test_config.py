from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import make_url

from foqs.config import ConfigError, HostConfig, load_config, redact_url
from foqs.config_addresses import peer_advertised_of
from foqs.storage.sessions.passwords import password_text
from foqs.storage.sessions.places import place_of

META = "mysql://root@db/meta"
SHARDS = {"0": "mysql://root@db/s0"}
MINIMAL = {"meta_url": META, "shards": SHARDS}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("CONFIG", *(name.upper() for name in HostConfig.model_fields)):
        monkeypatch.delenv(f"FOQS_{key}", raising=False)


@pytest.mark.parametrize("value", ["tcp://10.0.0.7:7600", "udp://foqs:53", "tcp://[fd00::7]:7600"])
def test_a_link_to_a_service_of_kubernetes_is_left_alone_with_a_warning(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FOQS_PORT", "FOQS_METRICS_PORT"):
        monkeypatch.setenv(name, value)
    loaded = load_config(MINIMAL)
    assert (loaded.config.port, loaded.config.metrics_port) == (HostConfig.model_fields["port"].default, 0)
    assert (loaded.origins["port"], len(loaded.warnings)) == ("default", 2)
    assert f"FOQS_PORT = {value} is a link to a service" in loaded.warnings[0]
    assert load_config({**MINIMAL, "port": "7"}).config.port == 7
    assert problems_of({**MINIMAL, "port": value}), "a flag is meant"


def problems_of(flags: dict[str, object], path: Path | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(flags, path)
    return caught.value.problems


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "foqs.toml"
    path.write_text(
        f'meta_url = "{META}"\nport = 1\nmetrics_port = 2\nlog_level = "error"\n[shards]\n7 = "mysql://db/s"\n'
    )
    monkeypatch.setenv("FOQS_PORT", "11")
    monkeypatch.setenv("FOQS_METRICS_PORT", "12")
    loaded = load_config({"port": "21", "log_format": None}, path)
    config = loaded.config
    assert (config.port, config.metrics_port, config.log_level, config.log_format) == (
        21,
        12,
        "error",
        "json",
    )
    assert config.shards == {7: "mysql+pymysql://db/s"}
    keys = ("port", "metrics_port", "log_level", "log_format")
    assert [loaded.origins[key] for key in keys] == ["flag", "environment", f"file {path}", "default"]


def test_the_file_may_be_named_by_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "foqs.toml").write_text("port = 99999")
    monkeypatch.setenv("FOQS_CONFIG", str(tmp_path / "foqs.toml"))
    assert any(problem.startswith("port = 99999 (file ") for problem in problems_of(MINIMAL))


@pytest.mark.parametrize(
    "shards",
    [
        {"0": "mysql://h/a", "12": "mysql://h/b"},
        '{"0": "mysql://h/a", "12": "mysql://h/b"}',
        "0=mysql://h/a 12=mysql://h/b",
        ("0=mysql://h/a", "12=mysql://h/b"),
        ["0=mysql://h/a 12=mysql://h/b"],
    ],
)
def test_shards_may_be_a_table_json_or_pairs(shards: object) -> None:
    config = load_config({"meta_url": META, "shards": shards}).config
    assert config.shards == {0: "mysql+pymysql://h/a", 12: "mysql+pymysql://h/b"}


def test_every_problem_is_reported_at_once_with_key_value_origin_and_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FOQS_DRAIN_MS_MAX", "-1")
    problems = problems_of({"port": "99999", "log_level": "loud", "cluster": "a b", "prot": 1, "shards": SHARDS})
    assert sorted(problem.split(";")[0] for problem in problems) == [
        "cluster = 'a b' (flag) is refused",
        "drain_ms_max = '-1' (environment) is refused",
        "log_level = 'loud' (flag) is refused",
        "meta_url is not set: give it by flag, in FOQS_META_URL or in the file "
        "(MySQL URL of the meta database, shared by all hosts of the cluster)",
        "port = '99999' (flag) is refused",
        "prot (flag) is not a key: did you mean port?",
    ]
    assert any("allowed: 0..600000" in problem for problem in problems)
    assert any("allowed: debug, info, warning, error" in problem for problem in problems)


@pytest.mark.parametrize(
    ("shards", "problem"),
    [
        ("", "at least one"),
        ("{", "not JSON"),
        ("what", "not a map"),
        ({"65536": "mysql://h/a"}, "'65536' is not within 0..65535"),
        ({"-1": "mysql://h/a"}, "'-1' is not within"),
        ("1=mysql://h/a 1=mysql://h/b", "shard 1 is named twice"),
        ({"1": "postgresql://h/a"}, "names the driver postgresql"),
        ({"1": "mysql://h"}, "names no database"),
        ({"1": "mysql://h/a 2=mysql://u:geheim@h/b"}, "shard 1: *** has white space in it"),
        ({"1": "mysql://h/a", "2": "mariadb://other@H:3306/a"}, "shards 1 and 2 are the same database"),
        ({str(shard_id): f"mysql://h/s{shard_id}" for shard_id in range(257)}, "up to 256"),
    ],
)
def test_a_wrong_shard_map_is_refused(shards: object, problem: str) -> None:
    (found,) = problems_of({"meta_url": META, "shards": shards})
    assert problem in found


def test_a_truth_value_is_no_number_and_a_number_no_truth_value() -> None:
    settings = {"meta_url": META, "shards": SHARDS, "port": True, "allow_undurable_servers": 7}
    assert problems_of(settings) == [
        "port = True (flag) is refused; allowed: 0..65535",
        "allow_undurable_servers = 7 (flag) is refused; allowed: true, false",
    ]


def test_the_meta_database_is_no_shard() -> None:
    assert problems_of({"meta_url": META, "shards": {"3": META}}) == ["meta_url and shard 3 are the same database"]


def test_passwords_are_shown_nowhere() -> None:
    secret = "mysql://user:geheim@db/s0"
    config = HostConfig(meta_url="mysql://user:geheim@db/meta", shards={0: secret})
    assert "geheim" not in str(config.redacted())
    assert "geheim" not in repr(config) + str(config.model_dump())
    assert password_text(config.shards[0]) == password_text(config.meta_url) == "geheim"
    problems = problems_of(
        {"meta_url": "mysql://user:geheim@db", "shards": {"0": secret, "70000": secret, "1": secret}}
    )
    assert len(problems) == 2
    assert "geheim" not in str(problems)
    assert redact_url("not a url geheim") == redact_url("mysql://u:geheim@h:port/x") == "***"
    assert "geheim" not in redact_url("mysql://h/a?password=geheim&ssl_key_password=geheim&pwd=geheim")
    assert redact_url("mysql://h/a 1=mysql://u:geheim@h/b") == "***"


def test_a_missing_or_broken_file_is_a_problem(tmp_path: Path) -> None:
    assert "No such file" in problems_of({}, tmp_path / "none.toml")[0]
    (tmp_path / "broken.toml").write_text("port = [")
    assert "is not TOML" in problems_of({}, tmp_path / "broken.toml")[0]


def test_hosts_on_one_machine_have_different_names_by_default() -> None:
    assert HostConfig(**MINIMAL, port=1).host_name != HostConfig(**MINIMAL, port=2).host_name
    assert HostConfig(**MINIMAL, port=1, host_name="me").host_name == "me"


def test_problems_of_the_file_hide_none_of_other_places(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_config({"port": "x"}, tmp_path / "none.toml")
    assert [problem.split()[0] for problem in caught.value.problems] == ["configuration", "port"]


def test_values_that_do_not_fit_each_other_are_told_beside_those_that_are_wrong():
    with pytest.raises(ConfigError) as caught:
        load_config({"meta_url": META, "shards": [f"4={META}"], "port": "x"})
    assert [problem.split()[0] for problem in caught.value.problems] == ["port", "meta_url"]
    assert caught.value.problems[1] == "meta_url and shard 4 are the same database"


def test_all_that_is_wrong_with_one_url_is_told():
    with pytest.raises(ConfigError) as caught:
        load_config({"meta_url": "postgres://db", "shards": ["0=mysql://db/s"]})
    (problem,) = caught.value.problems
    assert "names the driver postgres" in problem
    assert "names no database" in problem


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("", ""),
        ("zookeeper://zk-1", "zookeeper://zk-1:2181/foqs"),
        ("zookeeper://zk-1,zk-2:2182/", "zookeeper://zk-1:2181,zk-2:2182/foqs"),
        ("zookeeper://10.0.0.1:1,[::1]:65535/a/b.c_d-e/", "zookeeper://10.0.0.1:1,[::1]:65535/a/b.c_d-e"),
    ],
)
def test_the_url_of_zookeeper_has_servers_and_may_have_ports_and_a_path(given, used):
    assert HostConfig(meta_url=META, membership=given).membership == used


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("zk-1:2181", "is no URL of ZooKeeper"),
        ("etcd://zk-1", "is no URL of ZooKeeper"),
        ("zookeeper://", "names a server ''"),
        ("zookeeper://zk-1,", "names a server ''"),
        ("zookeeper://zk-1:0", "names a server 'zk-1:0'"),
        ("zookeeper://zk-1:65536", "names a server 'zk-1:65536'"),
        ("zookeeper://zk 1", "names a server 'zk 1'"),
        ("zookeeper://" + ",".join(["zk"] * 33), "names 33 servers; allowed: up to 32"),
        ("zookeeper://zk-1/zookeeper/foqs", "names the path '/zookeeper/foqs'"),
        ("zookeeper://zk-1/a/../b", "names the path '/a/../b'"),
        ("zookeeper://zk-1/a//b", "names the path '/a//b'"),
        ("zookeeper://zk-1" + "/a" * 9, "names the path"),
    ],
)
def test_what_is_wrong_with_the_url_of_zookeeper_is_told(given, told):
    (problem,) = problems_of({"meta_url": META, "shards": SHARDS, "membership": given})
    assert problem.startswith("membership (flag): ")
    assert told in problem
    assert "allowed: " in problem


def test_the_url_of_zookeeper_has_no_secret_which_would_be_told_with_it():
    (problem,) = problems_of({"meta_url": META, "shards": SHARDS, "membership": "zookeeper://user:geheim@zk-1"})
    assert "has a user in it" in problem
    assert "geheim" not in problem


@pytest.mark.parametrize(
    ("listen", "advertise", "told"),
    [
        ("127.0.0.1", "", "127.0.0.1:7600"),
        ("::1", "", "[::1]:7600"),
        ("0.0.0.0", "queue-a", "queue-a:7600"),
        ("0.0.0.0", "queue-a:17600", "queue-a:17600"),
        ("::", "[fd00::1]:17600", "[fd00::1]:17600"),
        ("::", "fd00::1", "[fd00::1]:7600"),
        ("0.0.0.0", "", ""),
        ("::", "", ""),
        ("0", "", ""),
        ("0:0:0:0:0:0:0:0", "", ""),
        ("127.0.0.1", "0.0.0.0", ""),
        ("127.0.0.1", "0.0.0.0:17600", ""),
        ("127.0.0.1", "[::]:17600", ""),
    ],
)
def test_an_address_that_leads_nowhere_is_told_to_nobody_and_warned_of(listen: str, advertise: str, told: str) -> None:
    config = HostConfig(**MINIMAL, listen_address=listen, advertise_address=advertise)
    assert config.advertised(7600) == told
    warnings = config.warnings()
    assert len(warnings) == (not told)
    if warnings:
        key, value = ("advertise_address", advertise) if advertise else ("listen_address", listen)
        assert warnings[0].startswith(f"{key} = {value} is every address of this machine")
        assert "set advertise_address" in warnings[0]


@pytest.mark.parametrize(
    ("listen", "advertise", "told"),
    [
        ("127.0.0.1", "", "127.0.0.1:7601"),
        ("::1", "", "[::1]:7601"),
        ("0.0.0.0", "queue-a", "queue-a:7601"),
        ("0.0.0.0", "queue-a:17600", "queue-a:7601"),
        ("::", "[fd00::1]:17600", "[fd00::1]:7601"),
        ("0.0.0.0", "", ""),
    ],
)
def test_hosts_are_told_the_address_for_clients_with_the_port_for_hosts(listen: str, advertise: str, told: str) -> None:
    config = HostConfig(**MINIMAL, listen_address=listen, advertise_address=advertise, peer_port=7601)
    assert peer_advertised_of(config, 7601) == told


def test_a_port_for_hosts_is_no_other_port_of_the_host() -> None:
    (found,) = problems_of(MINIMAL | {"port": 7600, "peer_port": 7600})
    assert found.startswith("peer_port = 7600 is port as well")
    (found,) = problems_of(MINIMAL | {"metrics_port": 7601, "peer_port": 7601})
    assert found.startswith("peer_port = 7601 is metrics_port as well")
    apart = MINIMAL | {"metrics_port": 7601, "peer_port": 7601, "metrics_address": "127.0.0.2"}
    assert load_config(apart).config.peer_port == 7601
    assert load_config(MINIMAL | {"port": 0}).config.peer_port == 0


@pytest.mark.parametrize("key", ["meta_url", "shards", "shard_login"])
@pytest.mark.parametrize("url", ["mysql://foqs:foqs@db/d", "mysql://app:shop@db/shop_7", "mysql://my-app-1:app@db/x"])
def test_a_password_that_names_show_is_refused_and_not_repeated(key: str, url: str) -> None:
    values: dict[str, object] = MINIMAL | {key: {"4": url} if key == "shards" else url}
    (found,) = problems_of(values)
    assert "has a password that is part of the user's or the database's name" in found
    assert ":***@" in found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("db-*.Example:3306 /run//m.sock", ("db-*.example:3306", "/run/m.sock")),
        (["10.0.7.*:03306", "[0::1]:1"], ("10.0.7.*:3306", "[::1]:1")),
        ("", ()),
        ([], ()),
    ],
)
def test_servers_of_shards_are_a_list_or_a_text(given: object, found: tuple[str, ...]) -> None:
    config = load_config(MINIMAL | {"shard_places": given}).config
    assert config.shard_places == found
    assert HostConfig.model_validate(config.model_dump()).shard_places == found
    assert load_config(MINIMAL | {"shard_places": config.redacted()["shard_places"]}).config.shard_places == found


@pytest.mark.parametrize(
    "entry",
    ["*", "*:3306", "?*:3306", "*.*:3306", "-*:1", "db", "db:", "db:0", "db:65536", "db:*", "[a-z]*:1", "[db]:1",
     "a b", "mysql://db:3306/x", "db/x:1", ":3306", "db:33o6", "[::1]", "db,other:1"],
)  # fmt: skip
def test_an_entry_that_is_no_server_or_every_one_is_refused(entry: str) -> None:
    (found,) = problems_of(MINIMAL | {"shard_places": [entry]})
    assert found.startswith(f"shard_places (flag): {entry!r} is no server")


def test_servers_of_shards_are_no_number() -> None:
    (found,) = problems_of(MINIMAL | {"shard_places": 7})
    assert "is no list" in found


def test_a_relocated_shard_is_opened_at_its_place_with_the_user_of_a_configured_url_of_that_place() -> None:
    own, other = "mysql+pymysql://me:geheim@db-1/s0", "mysql+pymysql://you:auch@db-2/s1"
    config = HostConfig(meta_url=META, shards={0: own, 1: other})
    assert config.url_of_shard(0, "mysql://db-9/s0") == config.shards[0], "it was never relocated"
    assert config.url_of_shard(0, place_of(other), is_relocated=True) == config.shards[1]
    elsewhere = make_url(config.url_of_shard(0, "mysql://db-1/s9", is_relocated=True))
    assert (elsewhere.host, elsewhere.database) == ("db-1", "s9")
    assert elsewhere.username == make_url(META).username
