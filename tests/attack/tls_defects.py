"""Defects of TLS, of the login at databases, and of the keeping of secrets."""

from __future__ import annotations

import inspect
import ssl
import tempfile
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from foqs.host.access import guard
from foqs.model import access_tokens, secret
from foqs.model.errors import InvalidArgumentError
from foqs.storage.sessions import login
from foqs.transport import operator_port
from foqs.transport.connection import Connection
from foqs.transport.sign_ins import SignIns
from foqs.transport.tls import contexts, handshakes, layer
from foqs.transport.tls.caller_tls import CallerTls
from foqs.transport.tls.certificates import Certificates
from foqs.transport.tls.contexts import Contexts, TlsFiles
from foqs.transport.tls.handshakes import Handshakes
from foqs.transport.tls.layer import TlsLayer
from foqs.transport.tls.pem_files import Pair
from foqs.wire.codec import structs
from tests.attack.seeding import Check, a_test, found_by, in_place_of, patched, test_at, with_tools
from tests.support.certificates import Authority, write_certificate

_load = contexts.load
_read = Certificates._read
_begin = TlsLayer._begin
_caller_tls = layer.caller_tls
_record_begun = Connection.record_begun
_wrong_token = SignIns.wrong_token
_TLS = "attack.test_tls"
_FILES = "unit.test_tls_certificates"


def of_tls(name: str) -> Check:
    """A test of the port with TLS, with an authority and the files of a host."""

    made: dict[Path, Authority] = {}

    def authority(at: Path) -> Authority:
        return made.setdefault(at, Authority(at))

    def files(at: Path) -> TlsFiles:
        issued = made[at].issue("host", hosts=["127.0.0.1", "localhost"])
        return TlsFiles(
            cert_file=issued.cert_file, key_file=issued.key_file, ca_file=made[at].ca_file, clients="wanted"
        )

    return with_tools(f"{_TLS}:{name}", authority=authority, files=files)


def of_port_of_metrics(name: str, **given: Any) -> Check:
    """A test of the port for operators whose metrics are for who shows a token."""

    async def check() -> None:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "token"
            file.write_text("planted-tök\n")
            file.chmod(0o600)
            watched = test_at("unit.test_operator_port:WatchedByToken")(file)
            await watched.service.start()
            try:
                await test_at(f"unit.test_operator_port:{name}")(watched, **given)
            finally:
                await watched.service.stop()

    return check


def certificates_at(directory: Path) -> Path:
    write_certificate(directory)
    return directory


def of_files(name: str) -> Check:
    """A test of the files of a certificate, with an authority."""
    return with_tools(f"{_FILES}:{name}", authority=Authority)


def loads(change: Callable[[Contexts], object]) -> AbstractContextManager[Any]:
    """Contexts are changed in this way after they were made."""

    def load(files: TlsFiles, now_ms: int) -> Contexts:
        made = _load(files, now_ms)
        change(made)
        return made

    patches = ExitStack()
    for place in ("foqs.transport.tls.certificates.load", "tests.unit.test_tls_certificates.load"):
        patches.enter_context(patch(place, load))
    return patches


# ---- the port ----


@in_place_of(TlsLayer, "_begin", of_tls("test_a_plain_caller_is_told_to_use_tls_where_it_is_required"))
def lets_plain_calls_through_where_tls_is_required(self: TlsLayer, data: bytes) -> bool:
    self._door.answer_plain = None
    return _begin(self, data)


@found_by(of_tls("test_where_certificates_are_required_a_caller_without_one_makes_no_call"))
def does_not_ask_for_the_certificate_of_a_client() -> AbstractContextManager[Any]:
    return patch.dict(contexts._VERIFY, required=ssl.CERT_NONE)


@in_place_of(layer, "caller_tls", of_tls("test_a_name_that_is_only_the_common_name_proves_nothing"))
def reads_the_common_name(encrypted: ssl.SSLObject, binding: bytes, *, is_host: bool) -> CallerTls:
    subject: Any = (encrypted.getpeercert() or {}).get("subject", ())
    names = tuple(value for part in subject for _, value in part)
    return _caller_tls(encrypted, binding, is_host=is_host)._replace(names=names)


@in_place_of(
    layer,
    "caller_tls",
    with_tools(
        "attack.test_certificates_that_change:test_the_end_of_a_client_s_certificate_is_the_end_of_what_it_proves",
        authority=Authority,
        version=lambda _: ssl.TLSVersion.TLSv1_3,
    ),
)
def forgets_the_end_of_a_certificate(encrypted: ssl.SSLObject, binding: bytes, *, is_host: bool) -> CallerTls:
    return _caller_tls(encrypted, binding, is_host=is_host)._replace(ends_at_ms=0)


@in_place_of(Handshakes, "ask", patched("unit.test_tls_handshakes:test_beyond_the_bound_a_handshake_is_refused"))
def lets_any_number_of_handshakes_wait(self: Handshakes, shaker: Any) -> bool:
    if not self.waiting_count and self._time_left_s() > 0:
        self._step(shaker)
        return True
    self._by_address.setdefault(shaker.address, deque()).append(shaker)
    self.waiting_count += 1
    self._set_timer()
    return True


@found_by(a_test("unit.test_tls_handshakes:test_a_flood_takes_a_quarter_of_the_loop_s_time"))
def gives_handshakes_all_of_the_loop_s_time() -> AbstractContextManager[Any]:
    return patch.object(handshakes, "SHARE_OF_LOOP_MAX", 1.0)


@in_place_of(
    Handshakes,
    "_next",
    a_test("unit.test_tls_handshakes:test_addresses_have_turns_so_a_flood_of_one_delays_another_by_one_step"),
)
def serves_an_address_until_none_of_it_waits(self: Handshakes) -> Any:
    address = next(iter(self._by_address))
    shaker = self._by_address[address].popleft()
    if not self._by_address[address]:
        del self._by_address[address]
    self.waiting_count -= 1
    return shaker


@in_place_of(
    Connection, "record_begun", of_tls("test_the_time_for_a_record_begins_anew_with_each_and_not_with_each_byte")
)
def gives_time_anew_for_each_byte_of_a_record(self: Connection, buffered_bytes: int, *, is_another: bool) -> None:
    _record_begun(self, buffered_bytes, is_another=True)


# ---- certificates ----


@found_by(of_files("test_tickets_and_renegotiation_are_off_and_versions_bounded"))
def gives_tickets() -> AbstractContextManager[Any]:
    return loads(lambda made: setattr(made.server, "num_tickets", 2))


@found_by(of_files("test_tickets_and_renegotiation_are_off_and_versions_bounded"))
def speaks_versions_that_are_broken() -> AbstractContextManager[Any]:
    return patch.dict(contexts._VERSIONS, {"1.2": ssl.TLSVersion.MINIMUM_SUPPORTED})


@found_by(of_files("test_tickets_and_renegotiation_are_off_and_versions_bounded"))
def does_not_look_at_the_names_of_other_hosts() -> AbstractContextManager[Any]:
    return loads(lambda made: setattr(made.peers, "check_hostname", False))


@in_place_of(Pair, "_check_key_mode", of_files("test_the_key_can_be_read_by_its_group_but_not_changed"))
def takes_a_key_that_others_can_read(self: Pair) -> None: ...


@in_place_of(
    Certificates,
    "_read",
    with_tools(
        "attack.test_certificates_that_change:test_half_a_pair_that_was_replaced_leaves_the_old_pair_served",
        authority=Authority,
        replaced=lambda _: "the certificate",
    ),
)
def loads_a_new_pair_into_the_live_context(self: Certificates) -> Any:
    if self._contexts is None:
        return _read(self)
    try:
        self._contexts.server.context.load_cert_chain(self._files.cert_file, self._files.key_file)
    except ssl.SSLError as error:
        raise InvalidArgumentError(str(error)) from None
    return self._file_states(), self._contexts


@found_by(
    a_test(
        "attack.test_certificates_that_change:test_a_port_that_others_reach_is_not_served_while_access_is_not_enforced",
        "0.0.0.0",
    )
)
def takes_every_address_for_one_of_this_machine() -> AbstractContextManager[Any]:
    return patch.object(guard, "is_loopback", lambda address: True)


# ---- secrets ----


@in_place_of(secret.Secret, "__repr__", a_test("unit.test_secret:test_no_form_of_a_secret_shows_it", repr))
def shows_a_secret_where_it_is_printed(self: secret.Secret) -> str:
    return repr(self._value)


@found_by(a_test("unit.test_access_tokens:test_the_secret_is_in_no_repr"))
def shows_the_secret_of_a_token() -> AbstractContextManager[Any]:
    return patch.object(access_tokens.Token, "__repr__", lambda self: f"Token({self.id}, {self.secret!r})")


@found_by(a_test("attack.test_before_login:test_a_token_is_in_no_log_no_error_and_no_repr"))
def shows_the_token_of_a_request() -> AbstractContextManager[Any]:
    return patch.object(structs.AuthenticateRequest, "__repr__", lambda self: f"AuthenticateRequest({self.token!r})")


@in_place_of(SignIns, "wrong_token", a_test("attack.test_before_login:test_a_token_is_in_no_log_no_error_and_no_repr"))
def logs_what_was_shown(self: SignIns, address: str, reason: str) -> None:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    assert frame.f_back.f_back is not None
    _wrong_token(self, address, f"{reason}: {frame.f_back.f_back.f_locals.get('token')}")


@found_by(of_port_of_metrics("test_metrics_are_refused_without_the_token", shown="Bearer wrong"))
def shows_metrics_without_the_token() -> AbstractContextManager[Any]:
    return patch.object(operator_port._Handler, "_shows_token", lambda self: True)


# ---- databases ----


def at_a_false_server(name: str, attack: str, **tools: Any) -> Check:
    """A test of the login, against a server that asks in this way."""
    script = f"unit.test_login:{attack}"
    return with_tools(f"unit.test_login:{name}", attack=lambda _: test_at(script), **tools)


@found_by(
    at_a_false_server("test_a_false_server_gets_no_password_by_any_plugin", "caching_greeting", link=lambda _: None)
)
def trusts_every_link_with_the_password() -> AbstractContextManager[Any]:
    return patch.object(login.GuardedConnection, "may_carry_password", True)


@found_by(
    at_a_false_server(
        "test_what_stands_before_the_plugins_is_not_all_that_holds", "clear", certificates=certificates_at
    )
)
def does_not_look_at_what_is_written() -> AbstractContextManager[Any]:
    return patch.object(login.GuardedConnection, "_check_secret", lambda self, data: None)


@found_by(
    with_tools(
        "unit.test_login:test_who_is_refused_hears_why_and_what_to_use",
        attack=lambda _: test_at("unit.test_login:dialog"),
        reason=lambda _: "asks by 'dialog'",
        link=lambda _: None,
    )
)
def answers_every_plugin() -> AbstractContextManager[Any]:
    return patch.object(login, "_PLUGINS", login._PLUGINS | {"dialog", "mysql_clear_password"})


@found_by(a_test("unit.test_login:test_the_bound_of_what_is_read_is_told"))
def reads_all_that_a_server_says() -> AbstractContextManager[Any]:
    return patch.object(login, "LOGIN_BYTES_MAX", 1 << 40)
