"""What may follow the question mark in the URL of a database, and what it means."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import make_url

from foqs.config import ConfigError, HostConfig, load_config
from foqs.model.errors import InvalidArgumentError
from foqs.storage.sessions.passwords import KEPT, password_text
from foqs.storage.sessions.session import Session, session_arguments
from foqs.storage.sessions.url_options import OPTIONS, check_tls
from tests.support.certificates import write_certificate

META = "mysql://app:geheim@db/meta"
CONFIGURATION = Path(__file__).parents[2] / "docs/configuration.md"


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    write_certificate(tmp_path)
    return tmp_path / "cert.pem"


def used(options: str) -> dict[str, object]:
    """Returns the options of the URL that a host makes of one with these."""
    query = dict(make_url(HostConfig(meta_url=f"{META}?{options}").meta_url).query)
    assert query.pop(KEPT)
    return query


@pytest.mark.parametrize(
    "options",
    [
        "",
        "unix_socket=/run/m.sock",
        "connect_timeout=1",
        "connect_timeout=5",
        "ssl_ca=/ca&ssl_cert=/c&ssl_key=/k&ssl_cipher=ECDHE-RSA-AES256-GCM-SHA384",
        "ssl_capath=/etc/ssl/certs",
        "ssl_cert=/c",
        "ssl_ca=/ca&ssl_check_hostname=false",
    ],
)
def test_options_that_are_known_are_kept_as_they_are(options: str) -> None:
    assert used(options) == dict(make_url(f"mysql://h/d?{options}").query)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("ssl_ca=/ca&ssl_verify_cert=true", {"ssl_ca": "/ca"}),
        ("ssl_ca=/ca&ssl_verify_identity=true", {"ssl_ca": "/ca", "ssl_check_hostname": "true"}),
        ("ssl_ca=/ca&ssl_verify_identity=false", {"ssl_ca": "/ca", "ssl_check_hostname": "false"}),
        ("ssl_capath=/d&ssl_verify_cert=true", {"ssl_capath": "/d"}),
        ("ssl_verify_cert=false", {"ssl_check_hostname": "false"}),
        ("ssl_verify_cert=false&ssl_verify_identity=false", {"ssl_check_hostname": "false"}),
    ],
)  # fmt: skip
def test_what_is_to_be_verified_is_said_once_and_the_same_when_it_is_read_again(
    given: str, taken: dict[str, str]
) -> None:
    assert used(given) == taken
    assert used("&".join(f"{key}={value}" for key, value in taken.items())) == taken


@pytest.mark.parametrize(
    ("options", "mode", "is_name_checked"),
    [
        ("ssl_ca={ca}", "CERT_REQUIRED", True),
        ("ssl_ca={ca}&ssl_verify_cert=true&ssl_verify_identity=true", "CERT_REQUIRED", True),
        ("ssl_ca={ca}&ssl_verify_identity=false", "CERT_REQUIRED", False),
        ("ssl_verify_cert=false", "CERT_NONE", False),
    ],
)
def test_a_session_verifies_what_the_options_say(ca: Path, options: str, mode: str, *, is_name_checked: bool) -> None:
    """By itself the driver forgets the CA when it is told to verify the name."""
    config = HostConfig(meta_url=f"{META}?{options.format(ca=ca)}")
    session = Session(**session_arguments(config.meta_url), defer_connect=True)
    assert session._ssl_required
    assert (session.ctx.verify_mode.name, session.ctx.check_hostname) == (mode, is_name_checked)
    if mode == "CERT_REQUIRED":
        assert len(session.ctx.get_ca_certs()) == 1, "the system's authorities do not count beside it"


@pytest.mark.parametrize("key", ["meta_url", "shards", "shard_login"])
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("ssl_mode=REQUIRED", "has the option ssl_mode, which is none of foqs: use ssl_ca"),
        ("ssl=true", "has the option ssl, which is none of foqs: use ssl_ca"),
        ("ssl_bogus=1", "has the option ssl_bogus, which is none of foqs: leave it out"),
        ("ssl_cert_=1", "has the option ssl_cert_, which is none of foqs: did you mean ssl_cert?"),
        ("password=geheim", "has the option password, which is none of foqs: it stands before the @"),
        ("charset=utf8", "has the option charset, which is none of foqs"),
        ("ssl_ca=", "has the option ssl_ca without a value"),
        ("ssl_ca", "has the option ssl_ca without a value"),
        ("ssl_ca=/a&ssl_ca=/b", "has the option ssl_ca twice"),
        ("ssl_ca=/a&ssl_verify_identity=ja", "ssl_verify_identity = ja; allowed: true, false"),
        ("connect_timeout=0", "connect_timeout = 0; allowed: 1..5, in seconds"),
        ("connect_timeout=6", "connect_timeout = 6; allowed: 1..5, in seconds"),
        ("connect_timeout=soon", "connect_timeout = soon; allowed: 1..5, in seconds"),
        ("ssl_key=/k", "has ssl_key without ssl_cert"),
        ("ssl_verify_cert=true", "has ssl_verify_cert = true without ssl_ca or ssl_capath"),
        ("ssl_verify_identity=true", "has ssl_verify_identity = true without ssl_ca or ssl_capath"),
        ("ssl_check_hostname=true", "has ssl_check_hostname = true without ssl_ca or ssl_capath"),
        ("ssl_ca=/a&ssl_verify_cert=false", "has ssl_verify_cert = false beside ssl_ca"),
        ("ssl_ca=/a&ssl_verify_identity=true&ssl_check_hostname=true", "which are one option"),
    ],
)
def test_an_option_that_cannot_be_used_is_told_with_what_to_do(key: str, options: str, told: str) -> None:
    url = f"mysql://app:geheim@db-2/d?{options}"
    settings: dict[str, object] = {"meta_url": META} | {key: f"0={url}" if key == "shards" else url}
    with pytest.raises(ConfigError) as caught:
        load_config(settings)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{key} (flag): ")
    assert told in problem
    assert "geheim" not in problem
    if "none of foqs" in told:
        assert f"allowed: {', '.join(OPTIONS)}" in problem


def test_a_password_with_the_signs_of_options_has_none() -> None:
    config = HostConfig(meta_url="mysql://app:a?b&c=&d@db/meta")
    assert password_text(config.meta_url) == "a?b&c=&d"


def test_each_option_is_documented() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| `?([^|`]+)`? \|", CONFIGURATION.read_text(), re.MULTILINE)
    assert [row for row in rows if row[0] in OPTIONS] == list(OPTIONS.items())


@pytest.mark.parametrize("key", ["ssl_ca", "ssl_capath", "ssl_cert", "ssl_key"])
def test_a_file_that_is_missing_is_told_with_its_option(ca: Path, tmp_path: Path, key: str) -> None:
    options = {"ssl_ca": str(ca), "ssl_cert": str(ca), "ssl_key": str(tmp_path / "key.pem")}
    check_tls("mysql://h/d?" + "&".join(f"{name}={value}" for name, value in options.items()))
    options[key] = f"{tmp_path}/none"
    with pytest.raises(InvalidArgumentError) as caught:
        check_tls("mysql://h/d?" + "&".join(f"{name}={value}" for name, value in options.items()))
    assert caught.value.message.startswith(f"{key} = {tmp_path}/none cannot be used: No such file or directory")


def test_files_that_hold_something_else_are_told_with_their_options(ca: Path, tmp_path: Path) -> None:
    strange = tmp_path / "strange.pem"
    strange.write_text("not a certificate")
    with pytest.raises(InvalidArgumentError, match=f"^ssl_ca = {strange} cannot be used: "):
        check_tls(f"mysql://h/d?ssl_ca={strange}")
    with pytest.raises(InvalidArgumentError, match=f"^ssl_cert = {ca}, ssl_key = {strange} cannot be used: "):
        check_tls(f"mysql://h/d?ssl_cert={ca}&ssl_key={strange}")
    with pytest.raises(InvalidArgumentError, match="ssl_cipher = NONE-SUCH cannot be used: "):
        check_tls("mysql://h/d?ssl_cipher=NONE-SUCH")
    check_tls(f"mysql://h/d?unix_socket=/m.sock&ssl_ca={strange}")
