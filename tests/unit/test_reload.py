"""What a running host takes from its configuration when it is read again, and what it leaves alone."""

from __future__ import annotations

import pytest
import structlog
from structlog.testing import capture_logs

from foqs.config import ConfigError, HostConfig, load_config
from foqs.reload import Reload
from tests.support.certificates import write_certificate

META = "mysql://app:secret@db/meta"
SHARD = "mysql://app:secret@db/s0"


def config(**changes: object) -> HostConfig:
    return HostConfig.model_validate({"meta_url": META, "shards": {0: SHARD}, "host_name": "h", **changes})


@pytest.fixture
def ca(tmp_path):
    write_certificate(tmp_path)
    return tmp_path / "cert.pem"


def test_the_log_level_and_tls_options_are_taken_and_named(ca):
    wanted = config(log_level="debug", meta_url=f"{META}?ssl_ca={ca}", shards={0: f"{SHARD}?ssl_ca={ca}"})
    with capture_logs() as logs:
        after = Reload(config(), lambda: wanted).run()
    assert after == wanted
    (log,) = logs
    assert (log["event"], log["changed"], log["needs_restart"]) == (
        "configuration_reloaded",
        ["meta_url", "shards", "log_level"],
        [],
    )
    assert "secret" not in str(logs)


@pytest.mark.parametrize(
    "changes",
    [
        {"port": 7},
        {"meta_url": "mysql://app:secret@elsewhere/meta"},
        {"meta_url": "mysql://you:other@db/meta"},
        {"shards": {0: "mysql://you:other@db/s0"}},
        {"shards": {0: SHARD, 1: "mysql://app:secret@db/s1"}},
        {"shards": {1: "mysql://app:secret@db/s1"}},
    ],
)
def test_what_needs_a_restart_is_left_alone_and_named(changes):
    with capture_logs() as logs:
        after = Reload(config(), lambda: config(**changes)).run()
    assert after == config()
    assert logs[0]["needs_restart"] == list(changes)


def test_new_passwords_are_taken_for_the_same_user_and_shown_nowhere() -> None:
    login = "mysql://app:secret@any"
    wanted = config(
        meta_url=META.replace("secret", "newword"),
        shards={0: SHARD.replace("secret", "newword")},
        shard_login=login.replace("secret", "newword"),
    )
    reload = Reload(config(shard_login=login), lambda: wanted)
    with capture_logs() as logs:
        assert reload.run() == wanted
    assert (logs[0]["changed"], logs[0]["needs_restart"]) == (["meta_url", "shards", "shard_login"], [])
    assert "newword" not in str(logs)
    assert "secret" not in str(logs)


def test_a_password_where_there_was_none_is_taken_and_one_that_is_gone_as_well() -> None:
    bare = config(meta_url="mysql://app@db/meta")
    with capture_logs():
        assert Reload(bare, config).run() == config()
        assert Reload(config(), lambda: bare).run() == bare


def test_where_hosts_may_log_in_is_taken() -> None:
    wanted = config(shard_places=["db-*.example:3306"])
    with capture_logs() as logs:
        assert Reload(config(), lambda: wanted).run() == wanted
    assert (logs[0]["changed"], logs[0]["needs_restart"]) == (["shard_places"], [])


def test_a_place_that_changes_along_with_its_tls_options_keeps_both(ca):
    with capture_logs():
        after = Reload(config(), lambda: config(shards={0: f"mysql://app:secret@new/s0?ssl_ca={ca}"})).run()
    assert after == config()


def test_certificates_that_cannot_be_used_replace_nothing(ca, tmp_path):
    before = config(shards={0: f"{SHARD}?ssl_ca={ca}"})
    reload = Reload(before, lambda: config(shards={0: f"{SHARD}?ssl_ca={tmp_path}/none.pem"}))
    with capture_logs() as logs:
        assert reload.run() == before
    assert (logs[0]["event"], logs[0]["url_of"]) == ("tls_files_unusable", "shard 0")
    assert logs[0]["error"] == f"ssl_ca = {tmp_path}/none.pem cannot be used: No such file or directory"


def test_tls_options_of_the_login_of_shards_are_taken_and_checked_as_well(ca, tmp_path):
    login = "mysql://app:secret@any"
    before, wanted = config(shard_login=login), config(shard_login=f"{login}?ssl_ca={ca}")
    reload = Reload(before, lambda: wanted)
    with capture_logs() as logs:
        assert reload.run() == wanted
    assert (logs[0]["changed"], logs[0]["needs_restart"]) == (["shard_login"], [])
    missing = config(shard_login=f"{login}?ssl_ca={tmp_path}/none.pem")
    with capture_logs() as logs:
        assert Reload(wanted, lambda: missing).run() == wanted
    assert (logs[0]["event"], logs[0]["url_of"]) == ("tls_files_unusable", "shard_login")
    assert logs[0]["error"].startswith(f"ssl_ca = {tmp_path}/none.pem cannot be used")


@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        ("", "mysql://app:secret@any"),
        ("mysql://app:secret@any", ""),
        ("mysql://a@any", "mysql://b@any?ssl_cipher=DEFAULT"),
    ],
)
def test_another_login_of_shards_needs_a_restart(before, wanted):
    with capture_logs() as logs:
        assert Reload(config(shard_login=before), lambda: config(shard_login=wanted)).run() == config(
            shard_login=before
        )
    assert logs[0]["needs_restart"] == ["shard_login"]


def test_certificates_that_were_renewed_badly_under_the_same_name_are_told(ca):
    before = config(meta_url=f"{META}?ssl_ca={ca}")
    ca.write_text("not a certificate")
    with capture_logs() as logs:
        assert Reload(before, lambda: before).run() == before
    assert (logs[0]["event"], logs[0]["url_of"]) == ("tls_files_unusable", "meta_url")


def test_a_configuration_with_problems_changes_nothing_and_names_all_of_them():
    def load() -> HostConfig:
        raise ConfigError(["one", "two"])

    with capture_logs() as logs:
        assert Reload(config(), load).run() == config()
    assert (logs[0]["event"], logs[0]["problems"]) == ("configuration_not_reloaded", ["one", "two"])


def test_the_file_is_read_again_and_flags_still_go_first(tmp_path, monkeypatch):
    monkeypatch.delenv("FOQS_LOG_LEVEL", raising=False)
    file = tmp_path / "foqs.toml"
    lines = f'meta_url = "{META}"\nlog_level = "%s"\n[shards]\n0 = "{SHARD}"\n'
    file.write_text(lines % "info")
    loaded = load_config({"port": 7}, file)
    flagged = load_config({"log_level": "warning"}, file)
    file.write_text(lines % "debug")
    assert (loaded.again().config.log_level, loaded.again().config.port) == ("debug", 7)
    assert flagged.again().config.log_level == "warning"


def test_a_log_without_a_reader_ends_nothing(monkeypatch):
    from foqs.logs import configure_logs

    def gone(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("builtins.print", gone)
    try:
        configure_logs("info", "json")
        structlog.get_logger().info("anything")
    finally:
        structlog.reset_defaults()


@pytest.mark.parametrize(("running", "wanted"), [("accepted", "required"), ("required", "accepted")])
def test_a_change_of_tls_takes_the_verification_of_databases_along_at_the_next_start(running: str, wanted: str) -> None:
    """Else the default of a setting that is not taken would end sessions that are not verified, or verify no more."""
    files = {"tls_cert_file": "/cert.pem", "tls_key_file": "/key.pem"}
    before = config(tls=running, **files)
    after = config(tls=wanted, log_level="debug", shard_places="db:3306", **files)
    with capture_logs() as logs:
        found = Reload(before, lambda: after).run()
    assert (found.database_tls, found.meta_url, found.shards) == (before.database_tls, before.meta_url, before.shards)
    assert (found.log_level, found.shard_places) == ("debug", ("db:3306",))
    (log,) = logs
    assert log["changed"] == ["shard_places", "log_level"]
    assert {"tls", "database_tls", "meta_url"} <= set(log["needs_restart"])
    kept = config(tls=wanted, database_tls=before.database_tls, meta_url="mysql://app:new@db/meta", **files)
    assert "database_tls" not in _changed(Reload(before, lambda: kept).run(), before)
    assert "meta_url" in _changed(Reload(before, lambda: kept).run(), before), "a password is taken all the same"


def _changed(after: HostConfig, before: HostConfig) -> list[str]:
    return [key for key in HostConfig.model_fields if getattr(after, key) != getattr(before, key)]
