"""The login of a session at a false server: it gets no password, whatever it asks for and by whichever path."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pymysql
import pytest
from pymysql._auth import scramble_caching_sha2, scramble_native_password
from pymysql.constants import CLIENT

from foqs.storage.sessions import login
from foqs.storage.sessions.exchange import run_script
from foqs.storage.sessions.login import LOGIN_BYTES_MAX, GuardedConnection, NamedBy
from foqs.storage.sessions.places import url_at
from foqs.storage.sessions.session import Session, connect, session_arguments
from tests.support.certificates import write_certificate
from tests.support.false_server import FULL_LOGIN, KNOWN, OK, SALT, FalseServer, Talk
from tests.support.waiting import PATIENCE_S

PASSWORD = "geheimnis"
REFUSED = pymysql.err.OperationalError
THREE_WAYS = r"unix socket.*verified certificate.*loopback address that the configuration"
STRANGE = {"named_by": NamedBy.META}
"""The server is one that the configuration does not name."""


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    write_certificate(tmp_path)
    return tmp_path


@pytest.fixture(params=["plain", "unverified TLS"])
def link(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """The certificates of a server with TLS, None for one without."""
    if request.param == "plain":
        return None
    write_certificate(tmp_path)
    return tmp_path


def open_at(server: FalseServer, **changes: Any) -> Session:
    return Session(**session_arguments(server.url()) | changes)


def clear(talk: Talk, certificates: Path | None) -> None:
    talk.greet("mysql_native_password", certificates)
    talk.switch("mysql_clear_password", b"")


def dialog(talk: Talk, certificates: Path | None) -> None:
    talk.greet("mysql_native_password", certificates)
    talk.switch("dialog", b"\x02Password: ")


def old(talk: Talk, certificates: Path | None) -> None:
    talk.greet("mysql_native_password", certificates)
    talk.switch("mysql_old_password")


def sha256_greeting(talk: Talk, certificates: Path | None) -> None:
    talk.greet("sha256_password", certificates)
    talk.say(b"\x01" + rsa_key())
    talk.hear()


def sha256_switch(talk: Talk, certificates: Path | None) -> None:
    talk.greet("mysql_native_password", certificates)
    talk.switch("sha256_password")
    talk.say(b"\x01" + rsa_key())
    talk.hear()


def caching_greeting(talk: Talk, certificates: Path | None) -> None:
    talk.greet("caching_sha2_password", certificates)
    full_login(talk)


def caching_switch(talk: Talk, certificates: Path | None) -> None:
    talk.greet("mysql_native_password", certificates)
    talk.switch("caching_sha2_password")
    full_login(talk)


def caching_twice(talk: Talk, certificates: Path | None) -> None:
    talk.greet("caching_sha2_password", certificates)
    talk.say(KNOWN)
    full_login(talk)


def full_login(talk: Talk) -> None:
    talk.say(FULL_LOGIN)
    talk.hear()
    talk.say(b"\x01" + rsa_key())
    talk.hear()


def extra_data(talk: Talk, certificates: Path | None) -> None:
    talk.greet("mysql_native_password", certificates)
    talk.say(b"\x01Password: ")
    talk.hear()


ATTACKS = [
    clear, dialog, old, sha256_greeting, sha256_switch, caching_greeting, caching_switch, caching_twice, extra_data,
]  # fmt: skip


def rsa_key() -> bytes:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    public = rsa.generate_private_key(65537, 1024).public_key()
    return public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_false_server_gets_no_password_by_any_plugin(
    attack: Callable[[Talk, Path | None], None], link: Path | None
) -> None:
    with FalseServer(lambda talk: attack(talk, link)) as server, pytest.raises(REFUSED):
        open_at(server, **STRANGE)
    assert server.talks
    assert server.heard or attack is sha256_greeting, "that one hears nothing at all"
    assert PASSWORD.encode() not in server.heard
    # Nor encrypted for a key of the server, whose answer would be as long as its modulus, nor a request for the key.
    assert not any(len(packet) in (1, 128) for packet in server.talks[0].heard)


@pytest.mark.parametrize(
    "attack", [clear, dialog, sha256_greeting, sha256_switch, caching_greeting, caching_switch, caching_twice]
)
def test_the_driver_by_itself_shows_the_password(
    attack: Callable[[Talk, Path | None], None], certificates: Path
) -> None:
    """Else the tests above would prove nothing. Whoever raises the bounds of PyMySQL begins here."""
    driver: Any = vars(pymysql.connections)["Connection"]
    with FalseServer(lambda talk: attack(talk, certificates)) as server, pytest.raises(pymysql.err.MySQLError):
        driver(host="127.0.0.1", port=server.port, user="app", password=PASSWORD, database="d", connect_timeout=5)
    assert PASSWORD.encode() in server.heard


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (clear, "asks by 'mysql_clear_password'"),
        (dialog, "asks by 'dialog'"),
        (old, "asks by 'mysql_old_password'"),
        (sha256_switch, "asks by 'sha256_password'"),
        (sha256_greeting, f"begins with sha256_password.*{THREE_WAYS}"),
        (caching_greeting, f"full login of caching_sha2_password.*{THREE_WAYS}"),
        (caching_switch, f"full login of caching_sha2_password.*{THREE_WAYS}"),
    ],
)
def test_who_is_refused_hears_why_and_what_to_use(
    attack: Callable[[Talk, Path | None], None], reason: str, link: Path | None
) -> None:
    with FalseServer(lambda talk: attack(talk, link)) as server, pytest.raises(REFUSED, match=reason) as refused:
        open_at(server, **STRANGE)
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize("attack", [clear, dialog, sha256_greeting, sha256_switch, caching_greeting, caching_switch])
def test_what_stands_before_the_plugins_is_not_all_that_holds(
    attack: Callable[[Talk, Path | None], None], certificates: Path
) -> None:
    """The last look at what is written holds without any other guard, as when pymysql gets a new way to log in."""
    unguarded = {
        "_process_auth": pymysql.connections.Connection._process_auth,  # type: ignore[attr-defined]
        "_request_authentication": without_greeting_guard,
    }
    with (
        FalseServer(lambda talk: attack(talk, certificates)) as server,
        patch.multiple(GuardedConnection, **unguarded),
        patch.object(login, "_CachingSha2Password", None),
        pytest.raises(REFUSED, match="would have shown the password"),
    ):
        open_at(server, **STRANGE)
    assert PASSWORD.encode() not in server.heard


def without_greeting_guard(session: Any) -> None:
    session._connect_attrs = {}
    pymysql.connections.Connection._request_authentication(session)  # type: ignore[attr-defined]


def answered(talk: Talk, certificates: Path | None, verdict: bytes = FULL_LOGIN) -> None:
    talk.greet("caching_sha2_password", certificates)
    talk.say(verdict)
    if verdict == FULL_LOGIN:
        assert talk.hear() == PASSWORD.encode() + b"\0"
    talk.say(OK)
    talk.serve()


def test_a_full_login_works_over_tls_with_the_verified_certificate(certificates: Path) -> None:
    options = f"?ssl_ca={certificates / 'cert.pem'}"
    with FalseServer(lambda talk: answered(talk, certificates)) as server:
        Session(**session_arguments(server.url(options=options)) | STRANGE).close()


@pytest.mark.parametrize("option", ["ssl_check_hostname=false", "ssl_cipher=DEFAULT"])
def test_tls_that_verifies_half_of_it_is_not_enough(certificates: Path, option: str) -> None:
    options = f"?{option}" + (f"&ssl_ca={certificates / 'cert.pem'}" if "hostname" in option else "")
    with (
        FalseServer(lambda talk: caching_greeting(talk, certificates)) as server,
        pytest.raises(REFUSED, match=THREE_WAYS),
    ):
        Session(**session_arguments(server.url(options=options)) | STRANGE)
    assert PASSWORD.encode() not in server.heard


def test_a_full_login_works_over_a_socket_of_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    with FalseServer(lambda talk: answered(talk, None), path):
        Session(user="app", password=PASSWORD, unix_socket=str(path), ssl_disabled=True, **STRANGE).close()


def test_a_full_login_works_at_a_loopback_address_that_the_configuration_names(certificates: Path) -> None:
    with FalseServer(lambda talk: answered(talk, certificates)) as server:
        open_at(server).close()


def test_at_a_named_loopback_address_without_tls_nothing_is_shown_and_no_key_is_taken() -> None:
    with FalseServer(lambda talk: caching_greeting(talk, None)) as server, pytest.raises(REFUSED, match=THREE_WAYS):
        open_at(server)
    assert PASSWORD.encode() not in server.heard


def test_a_name_that_only_happens_to_lead_to_loopback_is_not_a_loopback_address(certificates: Path) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    with FalseServer(lambda talk: caching_greeting(talk, certificates)) as server:
        found[0] = (*found[0][:4], ("127.0.0.1", server.port))  # type: ignore[assignment]
        with patch("socket.getaddrinfo", lambda *_: found), pytest.raises(REFUSED, match=THREE_WAYS):
            open_at(server, host="db-1.example")
    assert PASSWORD.encode() not in server.heard


@pytest.mark.parametrize("plugin", ["caching_sha2_password", "mysql_native_password"])
def test_the_short_exchange_works_on_any_link(plugin: str, link: Path | None) -> None:
    answers: list[bytes] = []

    def log_in(talk: Talk) -> None:
        answers.append(talk.greet(plugin, link))
        if plugin == "caching_sha2_password":
            talk.say(KNOWN)
        talk.say(OK)
        talk.serve()

    with FalseServer(log_in) as server:
        open_at(server, **STRANGE).close()
    scramble = scramble_caching_sha2 if plugin == "caching_sha2_password" else scramble_native_password
    assert scramble(PASSWORD.encode(), SALT) in answers[0]


def test_the_short_exchange_works_after_a_switch_too(link: Path | None) -> None:
    def log_in(talk: Talk) -> None:
        talk.greet("mysql_native_password", link)
        salt = bytes(range(100, 120))
        assert talk.switch("caching_sha2_password", salt + b"\0") == scramble_caching_sha2(PASSWORD.encode(), salt)
        talk.say(KNOWN)
        talk.say(OK)
        talk.serve()

    with FalseServer(log_in) as server:
        open_at(server, **STRANGE).close()


def test_a_relayed_challenge_gets_an_answer_that_is_not_the_password(link: Path | None) -> None:
    """Whoever passes the true server's challenge on is not held off by the login, but by where hosts log in."""
    true_salt = hashlib.sha256(b"the true server").digest()[:20]
    answers: list[bytes] = []
    with FalseServer(lambda talk: answers.append(talk.greet("mysql_native_password", link, true_salt))) as server:
        with pytest.raises(REFUSED):
            open_at(server, **STRANGE)
        refused = url_at(f"mysql://127.0.0.1:{server.port}/d", server.url(), NamedBy.NOBODY)
        with pytest.raises(REFUSED, match="was not called"):
            connect(refused)
        assert len(server.talks) == 1, "it was not even called"
    assert scramble_native_password(PASSWORD.encode(), true_salt) in answers[0]


def test_a_user_without_a_password_that_is_asked_for_one_gives_up() -> None:
    def ask(talk: Talk) -> None:
        talk.greet("caching_sha2_password")
        full_login(talk)

    with FalseServer(ask) as server, pytest.raises(REFUSED, match="there is none"):
        open_at(server, password="")


@pytest.mark.parametrize("password", ["password", "sha2", "d", "pymysql"])
def test_a_password_that_is_a_word_of_the_protocol_is_no_hindrance(password: str, certificates: Path) -> None:
    def log_in(talk: Talk) -> None:
        talk.greet("mysql_native_password", None)
        talk.say(OK)
        talk.serve()

    with FalseServer(log_in) as server, patch("pymysql._auth.scramble_native_password", lambda *_: bytes(20)):
        Session(**session_arguments(server.url("u", password).replace("/d", "/x"))).close()


def test_a_password_that_is_part_of_the_database_of_a_place_is_not_shown() -> None:
    with (
        FalseServer(lambda talk: talk.greet("mysql_native_password")) as server,
        pytest.raises(REFUSED, match="part of the user's or the database's name"),
    ):
        open_at(server, database=f"x_{PASSWORD}_x")
    assert PASSWORD.encode() not in server.heard


# ---- what a server says ----


def logged_in(talk: Talk) -> None:
    talk.greet("mysql_native_password")
    talk.say(OK)


def test_a_server_that_asks_for_a_file_gets_none_and_the_session_is_lost(tmp_path: Path) -> None:
    def ask_for_file(talk: Talk) -> None:
        logged_in(talk)
        for _ in range(2):  # the character set and autocommit
            talk.hear()
            talk.say(OK)
        while True:
            talk.hear()
            talk.say(b"\xfb" + str(secret).encode())

    secret = tmp_path / "secret"
    secret.write_text("of this machine")
    with FalseServer(ask_for_file) as server:
        with open_at(server) as session, session.cursor() as cursor:
            with pytest.raises(REFUSED, match="asks for a file of this machine"):
                cursor.execute("SELECT 1")
            assert session._sock is None
        session = open_at(server)
        with closing(session), pytest.raises(REFUSED, match="request for a file"):
            asyncio.run(run_script(session, ["SELECT 1"]))
    assert b"of this machine" not in server.heard


def test_no_session_offers_files() -> None:
    for weak in ({"local_infile": True}, {"client_flag": CLIENT.LOCAL_FILES}, {"server_public_key": b"k"},
                 {"auth_plugin_map": {}}, {"read_default_file": "/etc/my.cnf"}):  # fmt: skip
        with pytest.raises(ValueError, match=r"cannot be given|any file of this machine"):
            GuardedConnection(host="127.0.0.1", port=1, **weak)


def flood_of_packets(talk: Talk) -> None:
    talk.greet("caching_sha2_password")
    while True:
        talk.say(b"\x01\x03")


def one_endless_packet(talk: Talk) -> None:
    talk.sock.sendall(b"\xff\xff\xff\x00")
    while True:
        talk.sock.sendall(bytes(65_536))


def endless_parts(talk: Talk) -> None:
    while True:
        talk.say(bytes(8_000))


@pytest.mark.parametrize("flood", [one_endless_packet, endless_parts, flood_of_packets])
def test_a_server_that_says_too_much_is_not_listened_to(flood: Callable[[Talk], None]) -> None:
    read_bytes, count_bytes = 0, login._Login.count

    def counted(one: login._Login, num_bytes: int) -> int:
        nonlocal read_bytes
        read_bytes = count_bytes(one, num_bytes)
        return read_bytes

    with (
        FalseServer(flood) as server,
        patch.object(login._Login, "count", counted),
        pytest.raises(pymysql.err.MySQLError),
    ):
        open_at(server)
    assert read_bytes < LOGIN_BYTES_MAX + (1 << 24), "it did not read what it refused"


def test_the_bound_of_what_is_read_is_told() -> None:
    with FalseServer(one_endless_packet) as server, pytest.raises(REFUSED, match=f"more than {LOGIN_BYTES_MAX} bytes"):
        open_at(server)


def test_a_server_that_says_a_byte_now_and_then_is_given_up_in_time() -> None:
    """Each byte comes soon enough for a timeout of one read; the login as a whole does not."""
    now_s, monotonic_s = 0.0, time.monotonic

    def trickle(talk: Talk) -> None:
        nonlocal now_s
        talk.sock.sendall(b"\x50\x00\x00\x00")
        while True:
            talk.sock.sendall(b"\x0a")
            now_s += 1.0

    with (
        FalseServer(trickle) as server,
        patch.object(login.time, "monotonic", lambda: monotonic_s() + now_s),
        pytest.raises(REFUSED, match="took too long"),
    ):
        open_at(server)


def test_a_login_may_take_several_steps_each_of_which_takes_as_long_as_an_answer_of_a_far_server() -> None:
    now_s, monotonic_s = 0.0, time.monotonic

    def far(talk: Talk) -> None:
        nonlocal now_s
        now_s += 0.4
        talk.greet("mysql_native_password")
        now_s += 0.4
        talk.say(OK)
        talk.serve()

    with FalseServer(far) as server, patch.object(login.time, "monotonic", lambda: monotonic_s() + now_s):
        with pytest.raises(REFUSED, match="took too long"):
            open_at(server, connect_timeout=0.6)
        open_at(server, connect_timeout=0.6, login_timeout=PATIENCE_S).close()


def test_a_server_that_accepts_and_says_nothing_is_given_up_after_one_step() -> None:
    with FalseServer(lambda talk: talk.hear()) as server, pytest.raises(REFUSED, match="timed out"):
        open_at(server, connect_timeout=5, login_timeout=1_000_000, read_timeout=0.05)


@pytest.mark.parametrize(
    "greeting",
    [
        b"", b"\x0a", b"\x0ax.y\0", b"\x0aeight\0" + bytes(60), b"\xff", b"HTTP/1.1 400 Bad Request\r\n",
        b"\x0a8.0\0" + bytes(27) + b"\xff\xfe" * 30,
    ],
)  # fmt: skip
def test_whatever_a_server_says_is_an_error_of_the_session(greeting: bytes) -> None:
    with FalseServer(lambda talk: (talk.say(greeting), talk.hear())) as server, pytest.raises(pymysql.err.MySQLError):
        open_at(server)
