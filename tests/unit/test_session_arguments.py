"""What a MySQL URL means for a session."""

from __future__ import annotations

import ssl

import pytest

from foqs.storage.sessions.session import Session, server_of, session_arguments


def test_server_user_and_tls_come_from_the_url():
    found = session_arguments(
        "mysql+pymysql://app:s%40crét@db.example:3307/foqs_0?ssl_ca=/ca.pem&ssl_cert=/c.pem&ssl_key=/k.pem"
    )
    assert (found["host"], found["port"], found["user"], found["database"]) == ("db.example", 3307, "app", "foqs_0")
    secret = found["password"].read()
    assert secret is not None
    assert secret.reveal().decode("latin1") == "s@crét"
    assert found["ssl"] == {"ca": "/ca.pem", "cert": "/c.pem", "key": "/k.pem"}
    assert "ssl_disabled" not in found


def test_a_socket_of_this_machine_needs_no_tls():
    found = session_arguments("mysql+pymysql://root@/foqs_0?unix_socket=/run/mysqld.sock")
    assert (found["unix_socket"], found["ssl_disabled"]) == ("/run/mysqld.sock", True)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("db.example/foqs_0", "app@db.example:3306/foqs_1", True),
        ("db.example/foqs_0", "db.example:3307/foqs_1", False),
        ("db.example/foqs_0", "other.example/foqs_0", False),
        ("root@/foqs_0?unix_socket=/a.sock", "root@/foqs_1?unix_socket=/a.sock&connect_timeout=2", True),
        ("root@/foqs_0?unix_socket=/a.sock", "root@/foqs_0?unix_socket=/b.sock", False),
    ],
)
def test_shards_share_a_server_whose_address_they_have_in_common(one, other, is_same):
    assert (server_of(f"mysql+pymysql://{one}") == server_of(f"mysql+pymysql://{other}")) is is_same


def test_connecting_has_a_bound_which_the_url_may_shorten():
    assert session_arguments("mysql+pymysql://root@h/d")["connect_timeout"] == 5
    assert session_arguments("mysql+pymysql://root@h/d?connect_timeout=2")["connect_timeout"] == 2


def test_trying_again_makes_no_tls_context_again(tmp_path):
    first, second = (Session(host="h", defer_connect=True) for _ in range(2))
    assert first.ctx is second.ctx
    server_ca = tmp_path / "ca.pem"
    server_ca.write_text("")
    with pytest.raises(ssl.SSLError):  # What a URL names is read each time: certificates are renewed.
        Session(host="h", ssl={"ca": str(server_ca)}, defer_connect=True)
