"""The login of every MySQL session of foqs, which never sends the password to a server that could be an impostor.

pymysql sends the password in clear over unverified TLS, or encrypted with a key that the server itself supplies, if the
server asks with the right plugin. This module defines the few plugins that get an answer, the links that can carry the
password, and the bounds of a login. docs/decisions/0043-database-logins.md lists the attacks that this stops, and those
it cannot stop.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import time
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NoReturn

import pymysql
from pymysql._auth import scramble_caching_sha2
from pymysql.constants import CLIENT, CR, ER
from pymysql.err import OperationalError
from pymysql.protocol import FieldDescriptorPacket, MysqlPacket

from foqs.model.errors import InvalidArgumentError
from foqs.model.secret import Secret
from foqs.storage.sessions.passwords import Password

LOGIN_BYTES_MAX: Final = 64 * 1024
"""The most bytes accepted from a server until the session is open; it needs a few hundred, an error a few more."""

_FULL_LOGIN: Final = "caching_sha2_password"
COLUMN_BYTES_MAX: Final = 512
"""The longest description of a column that is kept; that of a column of foqs has about a hundred bytes."""
_COLUMNS_KEPT_MAX: Final = 1_024
_PLUGINS: Final = frozenset({_FULL_LOGIN, "mysql_native_password", "client_ed25519"})
"""Each plugin's answer is valid for one challenge only; the first can also send the password, after a check."""
_NEVER_GIVEN: Final = frozenset(
    {"auth_plugin_map", "local_infile", "read_default_file", "read_default_group", "server_public_key"}
)
_TIMEOUT_UNKNOWN: Final = -1.0
_DENIED_WITHOUT_PASSWORD: Final = 1698
_DENIED: Final = (ER.ACCESS_DENIED_ERROR, _DENIED_WITHOUT_PASSWORD)
_THREE_WAYS: Final = (
    "use a unix socket (unix_socket=PATH), TLS with a verified certificate (ssl_ca=FILE), or a loopback address that "
    "the configuration of the host itself names, of a server with TLS"
)


class NamedBy(StrEnum):
    """The source of a server's address, because not every named server is trusted with the password."""

    CONFIGURATION = ""
    META = "meta"
    """A row of the meta database; the configuration allows the server without naming it."""
    NOBODY = "nobody"
    """A row of the meta database that the configuration does not allow; no session is opened."""


class GuardedConnection(pymysql.connections.Connection):
    """A pymysql connection whose login shows the password to no server that could be an impostor."""

    _sock: Any
    _rfile: Any
    _current_timeout: float | None
    _read_timeout: float | None
    _write_timeout: float | None
    _local_infile: bool
    _auth_plugin_name: str
    _connect_attrs: dict[str, str]
    _login: _Login | None = None
    """None once the session is open."""
    _secret: Secret | None = None

    def __init__(
        self,
        *,
        named_by: str = NamedBy.CONFIGURATION,
        login_timeout: float | None = None,
        password: Password | str = "",
        defer_connect: bool = False,
        **arguments: Any,
    ) -> None:
        """Connect at once unless `defer_connect` is set; `arguments` are those of pymysql.

        The whole login takes at most `login_timeout` seconds, or `connect_timeout` if that is not given. Its first
        step, the link to the server, takes at most `connect_timeout`, and each later step at most `read_timeout`.
        Raises pymysql.err.OperationalError, and ValueError for an argument that would weaken the login.
        """
        if weak := sorted(_NEVER_GIVEN & arguments.keys()):
            raise ValueError(f"{', '.join(weak)} cannot be given: see foqs.storage.sessions.login")
        self._named_by = NamedBy(named_by)
        self._login_timeout = login_timeout
        self._password = Password(Secret(password.encode())) if isinstance(password, str) else password
        super().__init__(**arguments, defer_connect=True, auth_plugin_map={_FULL_LOGIN: _CachingSha2Password})
        if not defer_connect:
            self.connect()

    @property
    def password(self) -> bytes:
        """The password of this login, for the driver."""
        return self._secret.reveal() if self._secret is not None else b""

    @password.setter
    def password(self, _: object) -> None:
        """Ignore the value of the driver, which has no password."""

    def connect(self, sock: Any = None) -> None:
        """Open the session within the login timeout. Raises pymysql.err.OperationalError for any bad answer.

        If the password is refused, its file is read again, and a newer password is tried once.
        """
        if self._local_infile or self.client_flag & CLIENT.LOCAL_FILES:
            raise ValueError("local_infile is on: a server could have any file of this machine")
        if self._named_by is NamedBy.NOBODY:
            raise OperationalError(
                CR.CR_CONN_HOST_ERROR,
                f"{self._server} was not called: neither does the configuration of this host name it, nor do its "
                "shard_places allow it",
            )
        self._secret = self._read_password()
        problem = self._log_in(sock)
        if problem is not None and problem.args[0] in _DENIED and sock is None:
            tried, self._secret = self._secret, self._read_password(again=True)
            if self._secret != tried:
                problem = self._log_in(None)
        if problem is not None:
            raise problem

    def _log_in(self, sock: Any) -> pymysql.err.Error | None:
        """Open the session. Return the error of a failure, without its traceback.

        The driver has the password in local values while it sends it, and some tracebacks show such values.
        """
        self._login = _Login(self._login_timeout or self.connect_timeout or 0.0, self._read_timeout)
        try:
            super().connect(sock)
        except pymysql.err.Error as error:
            return _without_traceback(error)
        except Exception as error:  # A malformed answer can break pymysql's parser in any way.
            return OperationalError(
                CR.CR_SERVER_HANDSHAKE_ERR, f"{self._server} does not answer as a MySQL server does: {error!r}"
            )
        finally:
            self._login = None
            self._current_timeout = _TIMEOUT_UNKNOWN  # The next read or write sets it.
        return None

    def _read_password(self, *, again: bool = False) -> Secret | None:
        try:
            return self._password.read(again=again)
        except InvalidArgumentError as error:
            raise OperationalError(
                CR.CR_CONN_HOST_ERROR, f"{self._server} was not called: password_file = {error.message}"
            ) from None

    def refuse(self, problem: str) -> NoReturn:
        """Abandon the login. Raises pymysql.err.OperationalError."""
        self._force_close()  # type: ignore[attr-defined]
        raise OperationalError(CR.CR_AUTH_PLUGIN_ERR, f"the login at {self._server} was given up: {problem}")

    @property
    def may_carry_password(self) -> bool:
        """True if the other end must be the intended server, and nobody can listen in between."""
        sock = self._sock
        if sock.family == socket.AF_UNIX:
            return True
        if not isinstance(sock, ssl.SSLSocket):
            return False
        if sock.context.verify_mode is ssl.CERT_REQUIRED and sock.context.check_hostname:
            return True
        return self._named_by is NamedBy.CONFIGURATION and _is_loopback(self.host, sock.getpeername()[0])

    @property
    def _server(self) -> str:
        return str(self.unix_socket or f"{self.host}:{self.port}")

    def _request_authentication(self) -> None:
        assert self._login is not None
        if self._auth_plugin_name == "sha256_password":
            # Its answer to the greeting is the password.
            self.refuse(f"the server begins with sha256_password, which is not answered; {_THREE_WAYS}")
        self._connect_attrs = {}  # They are in the packet that must not contain the password.
        super()._request_authentication()  # type: ignore[misc]
        self._login.is_logged_in = True

    def _process_auth(self, plugin_name: bytes, auth_packet: Any, handler: Any = None) -> Any:
        name = plugin_name.decode("ascii", "replace")
        if name not in _PLUGINS:
            self.refuse(
                f"the server asks by {name!r:.80}, as MySQL may for a user that it does not know, and only "
                f"{', '.join(sorted(_PLUGINS))} are answered"
            )
        return super()._process_auth(plugin_name, auth_packet, handler)  # type: ignore[misc]

    def _read_bytes(self, num_bytes: int) -> bytes:
        if (login := self._login) is None:
            return super()._read_bytes(num_bytes)  # type: ignore[misc, no-any-return]
        if login.count(num_bytes) > LOGIN_BYTES_MAX:
            self.refuse(f"the server says more than {LOGIN_BYTES_MAX} bytes before the session is open")
        data = b""
        try:
            while len(data) < num_bytes:
                # A server that sends single bytes slowly would never exceed a timeout of each read.
                self._sock.settimeout(login.step_s())
                chunk = self._rfile.read1(num_bytes - len(data))
                if not chunk:
                    raise ConnectionError("it closed the connection")
                data += chunk
        except OSError as error:
            self._force_close()  # type: ignore[attr-defined]
            raise OperationalError(CR.CR_SERVER_LOST, f"{self._server} was lost during the login: {error}") from error
        return data

    def _read_packet(self, packet_type: Any = MysqlPacket) -> Any:
        # A host reads the same few columns many times a second, and to parse them takes most of the time of a read.
        return super()._read_packet(_column if packet_type is FieldDescriptorPacket else packet_type)  # type: ignore[no-untyped-call]

    def _write_bytes(self, data: bytes) -> None:
        if (login := self._login) is not None:
            if not login.is_logged_in:
                self._check_secret(data)
            self._sock.settimeout(login.step_s())
            self._current_timeout = self._write_timeout
        super()._write_bytes(data)  # type: ignore[misc]

    def _check_secret(self, data: bytes) -> None:
        """Stop the password, on any path through pymysql, before it is written to a link that must not carry it."""
        for name in _PLUGINS:  # "password" is a bad password, and is part of most plugin names.
            data = data.replace(name.encode() + b"\0", b"\0")
        if self.password and self.password in data and not self.may_carry_password:
            self.refuse(
                f"it would have shown the password; if that is part of the user's or the database's name, change it, "
                f"else {_THREE_WAYS}"
            )

    def _read_query_result(self, unbuffered: bool = False) -> int:
        try:
            return super()._read_query_result(unbuffered)  # type: ignore[misc, no-any-return]
        except RuntimeError as error:  # pymysql raises it for LOCAL INFILE.
            self._force_close()  # type: ignore[attr-defined]
            raise OperationalError(
                CR.CR_MALFORMED_PACKET, f"{self._server} asks for a file of this machine, which it does not get"
            ) from error


@lru_cache(_COLUMNS_KEPT_MAX)
def _known_column(data: bytes, encoding: str) -> Any:
    return FieldDescriptorPacket(data, encoding)


def _column(data: bytes, encoding: str) -> Any:
    """Return the description of a column, which nobody changes."""
    if len(data) > COLUMN_BYTES_MAX:
        return FieldDescriptorPacket(data, encoding)
    return _known_column(data, encoding)


class _Login:
    """The remaining time and bytes of a login."""

    def __init__(self, seconds: float, step_s_max: float | None) -> None:
        """Wait at most `step_s_max` for a silent server, if that is given."""
        self.is_logged_in = False
        """True once the exchange about the password is over."""
        self._deadline_s = time.monotonic() + seconds
        self._step_s_max = step_s_max
        self._bytes = 0

    def count(self, num_bytes: int) -> int:
        """Add to the bytes read, and return their total."""
        self._bytes += num_bytes
        return self._bytes

    def step_s(self) -> float:
        """Return the wait for the server, in seconds. Raises TimeoutError when no time is left."""
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("it took too long")
        return left_s if self._step_s_max is None else min(left_s, self._step_s_max)


class _CachingSha2Password:
    """The plugin of MySQL 8, without the server's key: the short exchange on any link, the password on few links."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def authenticate(self, packet: Any) -> Any:
        """Answer a switch to this plugin, or the server's verdict on the first answer. Returns its last packet."""
        connection = self._connection
        if packet.is_auth_switch_request():
            salt = packet.read_all().removesuffix(b"\0")
            packet = self._asked(scramble_caching_sha2(connection.password, salt))
        if not packet.is_extra_auth_data():
            return packet
        if not connection.password:
            connection.refuse("the server goes on asking for a password, and there is none")
        packet.advance(1)
        verdict = packet.read_uint8()
        if verdict == _KNOWN:
            return connection._read_packet()
        if verdict != _FULL:
            connection.refuse(f"the server answers {verdict} to the short exchange of {_FULL_LOGIN}")
        if not connection.may_carry_password:
            connection.refuse(
                f"the server wants the password itself, since it does not remember the user (full login of "
                f"{_FULL_LOGIN}), and nothing proves which server it is: {_THREE_WAYS}"
            )
        return self._asked(connection.password + b"\0")

    def _asked(self, answer: bytes) -> Any:
        self._connection.write_packet(answer)
        return self._connection._read_packet()


_KNOWN: Final = 3
_FULL: Final = 4


def _without_traceback(error: pymysql.err.Error) -> pymysql.err.Error:
    """Remove the frames of the driver from an error, and from those that it keeps."""
    found: list[BaseException | None] = [error.__context__, error.__cause__, getattr(error, "original_exception", None)]
    for one in found:
        if one is not None:
            one.with_traceback(None).__context__ = one.__cause__ = None
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def _is_loopback(host: str, peer: str) -> bool:
    """True if the host was given as a loopback address and is at one; any other name could lead there by chance."""
    try:
        is_called_so = host == "localhost" or ipaddress.ip_address(host).is_loopback
        return is_called_so and ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False
