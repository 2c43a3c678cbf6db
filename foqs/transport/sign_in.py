"""The caller of one connection: the credential that it has shown, and the principal that the snapshot gives for it.

The calls about that, and those that nobody can make, are answered here at once, and not in the turn of their caller:
calls behind an `authenticate` must not overtake it. docs/decisions/0053-identities-of-connections.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foqs.contract.verbs import VERBS, Whole
from foqs.model import calls, limits
from foqs.model.access import AccessMode, Credential, TokenRefusedError
from foqs.model.calls import CallContext
from foqs.model.errors import ErrorCode, FoqsError, OverloadedError, PermissionDeniedError
from foqs.model.host_addresses import is_loopback
from foqs.model.peer_proof import PeerLink, PeerRefusedError
from foqs.model.principal import EVERYBODY, NOBODY, Principal
from foqs.transport.bounds import LOGIN_FRAME_BYTES_MAX, SIGN_IN_CALLS_PER_SWEEP_MAX, Snapshot
from foqs.transport.entrance import Entrance
from foqs.transport.sign_ins import PEER, REFUSALS, SIGN_IN_CALLS
from foqs.transport.tls.caller_tls import CallerTls
from foqs.transport.verb_table import OK, check_required
from foqs.wire.codec import HANDSHAKE, METHODS, METHODS_BY_NAME_BYTES, Method, UnreadableCallError, seqid_of
from foqs.wire.frames import FrameError

if TYPE_CHECKING:
    from foqs.transport.call_table import ServerCalls

AUTHENTICATE = METHODS["authenticate"]
WHO_AM_I = METHODS["whoAmI"]
OF_SIGN_IN = frozenset({AUTHENTICATE.name_bytes, WHO_AM_I.name_bytes})
"""The names of verbs that are answered here."""
CREDENTIAL_ENDED = "credential ended"
"""The reason for the audit of calls whose credential was revoked, has expired, or is of a disabled principal."""
_OVERLOADED = ErrorCode.OVERLOADED.name
_HANDSHAKE_BYTES = frozenset(name.encode() for name in HANDSHAKE)
_OF_HOSTS = frozenset(name.encode() for name, verb in VERBS.items() if verb.route is Whole.OF_PEERS)
_BESIDE_HOSTS = OF_SIGN_IN | _OF_HOSTS
"""The same where hosts have another port, because the verbs between hosts can be unknown here."""


class SignIn:
    """Owns the credential of one connection, and follows what becomes of it."""

    __slots__ = (
        "_answered_count",
        "_barred_since_s",
        "_counted_as",
        "_entrance",
        "_server",
        "_shared",
        "_snapshot",
        "address",
        "at_once",
        "context",
        "credential",
        "frame_bytes_max",
        "is_barred",
        "is_dead",
        "is_peer",
        "is_settled",
        "tls",
        "was_asked",
    )

    def __init__(self, server: ServerCalls, entrance: Entrance) -> None:
        self._server = server
        self._entrance = entrance
        self._shared = entrance.sign_ins
        self.at_once = _BESIDE_HOSTS if entrance.is_for_clients else OF_SIGN_IN
        """The names of verbs about which `answers` is asked even if the caller is not barred."""
        self._snapshot: Snapshot | None = None
        self.tls: CallerTls | None = None
        """The certificates of the connection; None without TLS."""
        self._counted_as: str | None = None
        self._barred_since_s: float | None = None
        self._answered_count = 0
        """Calls that were answered here since the last sweep."""
        self.address = ""
        self.credential: Credential | None = None
        self.context = CallContext("", principal=NOBODY)
        """The context of calls, made anew whenever the principal or the mode is another one."""
        self.is_settled = False
        """False until the first bytes came: with TLS, nothing is known of the caller before."""
        self.is_barred = False
        """True if all calls are refused but those to log in."""
        self.frame_bytes_max = limits.FRAME_BYTES_MAX
        self.is_dead = False
        """True if the credential was revoked or has ended, so that the connection takes no more calls."""
        self.is_peer = False
        self.was_asked = False

    # --- the connection ---

    def open(self, address: str) -> None:
        """The connection is admitted. It is not logged in."""
        self.address = address
        self.context = CallContext(address, principal=NOBODY)
        self._count_as("")

    def close(self) -> None:
        """The connection is lost."""
        if self._counted_as is not None:
            self._shared.leave(self.address, self._counted_as)
            self._counted_as = None

    def settle(self, tls: CallerTls | None) -> None:
        """Take the certificates of the connection, None without TLS. Raises FrameError if it has no place left."""
        self.is_settled, self.tls = True, tls
        self._follow(self._shared.snapshot)
        if self.credential is not None and not self._is_counted(self.credential.principal):
            raise FrameError("connections_per_principal_max", self._no_room(self.credential.principal).message)

    def begin_proof(self, *, is_fresh: bool) -> PeerLink:
        """Return the state of a caller that is about to prove to be a host, as `PeerLink`."""
        tls = self.tls or CallerTls(b"")
        return PeerLink(
            is_fresh=is_fresh,
            since_s=self._server.loop.time(),
            binding=tls.binding,
            host_uris=tls.host_uris,
            only_older=self._entrance.is_for_clients,
        )

    def ended_certificate(self) -> PeerRefusedError | None:
        """The reason to close the connection of a host whose certificate has expired, or None."""
        tls = self.tls
        if tls is None or tls.host_uris is None or tls.ends_at_ms > self._shared.wall_ms():
            return None
        return PeerRefusedError("certificate_ended", "the certificate that it has shown has expired: connect again")

    def become_peer(self) -> None:
        """The caller has proven to be a host of the cluster. Its calls are those of many others."""
        self.is_peer, self.is_barred, self._barred_since_s = True, False, None
        self.frame_bytes_max = limits.FRAME_BYTES_MAX
        self._count_as(PEER)

    def is_late(self, now_s: float) -> bool:
        """True if the caller has had its time to log in."""
        since_s = self._barred_since_s
        return since_s is not None and now_s - since_s >= self._server.limits.login_ms_max / 1000

    # --- what becomes of the credential ---

    def follow(self) -> bool:
        """Look at the snapshot and at the clock, every sweep. True if the context is another one now."""
        self._answered_count = 0
        if self.is_peer or self.is_dead or not self.is_settled:
            return False
        snapshot, credential = self._shared.snapshot, self.credential
        has_ended = credential is not None and 0 < credential.expires_at_ms <= self._shared.wall_ms()
        if snapshot is self._snapshot and not has_ended:
            return False
        before = self.context
        self._follow(snapshot)
        if self.credential is not None:  # Its certificate can have become one since.
            self._is_counted(self.credential.principal)
        return self.context is not before

    def _follow(self, snapshot: Snapshot) -> None:
        """Take the principal and the mode from one snapshot."""
        self._snapshot, now_ms = snapshot, self._shared.wall_ms()
        is_for_hosts = self._entrance.is_for_hosts
        if self.credential is None and self.tls is not None and self.tls.names and not is_for_hosts:
            found_by_name = snapshot.by_names(self.tls.names, now_ms)
            if found_by_name is not None:
                self.credential = found_by_name._replace(expires_at_ms=self.tls.ends_at_ms)
        credential = self.credential
        is_open, is_enforced = snapshot.mode is AccessMode.OPEN, snapshot.mode is AccessMode.ENFORCED
        if credential is None:
            principal = EVERYBODY if is_open and not is_for_hosts else NOBODY
        else:
            found = snapshot.principal(credential, now_ms)
            self.is_dead = found is None
            principal = Principal(credential.principal) if found is None else found
            if is_open and found is not None:
                principal = _unlimited(self.context.principal, credential.principal)
        self.is_barred = self.is_dead or (is_enforced and credential is None) or is_for_hosts
        self.frame_bytes_max = LOGIN_FRAME_BYTES_MAX if self.is_barred else limits.FRAME_BYTES_MAX
        if not self.is_barred or self.is_dead:
            self._barred_since_s = None
        elif self._barred_since_s is None:
            self._barred_since_s = self._shared.now_s()
        is_permissive = snapshot.mode is AccessMode.PERMISSIVE and not self.is_dead
        shown = "" if credential is None else credential.id
        context = self.context
        if (context.principal, context.is_permissive, context.credential) != (principal, is_permissive, shown):
            self.context = CallContext(self.address, principal=principal, is_permissive=is_permissive, credential=shown)

    def _is_counted(self, name: str) -> bool:
        """Count the connection as one of this principal. False if the principal has too many."""
        if self._counted_as != name:
            if not self._shared.has_room_for(name):
                return False
            self._count_as(name)
        return True

    def _count_as(self, name: str) -> None:
        if self._counted_as is not None:
            self._shared.leave(self.address, self._counted_as)
        self._counted_as = name
        self._shared.enter(self.address, name)

    # --- calls ---

    def answers(self, name: bytes) -> bool:
        """True if a call of this name is answered here."""
        if self.is_peer:
            return False
        if name in _HANDSHAKE_BYTES or (name in _OF_HOSTS and not self.is_barred):
            return self._entrance.hides_hosts()
        return True

    def answer(self, name: bytes, message: bytes) -> bytes:
        """Answer a call at once. Raises FrameError if its bytes are no call, or if the caller has made too many."""
        self.was_asked = True
        self._answered_count += 1
        if self._answered_count > SIGN_IN_CALLS_PER_SWEEP_MAX:
            raise self._flood(SIGN_IN_CALLS, f"more than {SIGN_IN_CALLS_PER_SWEEP_MAX} calls to log in at once")
        is_for_hosts, is_hidden = self._entrance.is_for_hosts, name in _OF_HOSTS and self._entrance.hides_hosts()
        refused = METHODS_BY_NAME_BYTES.get(name) if self.is_barred and not is_hidden else None
        if refused is not None and (is_for_hosts or name not in OF_SIGN_IN):
            return self.refuse(refused, seqid_of(message))
        # Thousands of clients log in at once after a restart. A login that fails is counted where it does.
        is_first_login = name == AUTHENTICATE.name_bytes and self.credential is None
        if not is_first_login:
            self._count_call()
        codec = self._server.codec
        try:
            if is_hidden:
                codec.refuse_call(message)
            method, seqid, request, _ = codec.decode_call(message)
        except UnreadableCallError as error:
            if is_first_login:
                self._count_unread_login()
            self._server.metrics.call_finished(error.method_name, error.outcome, 0.0)
            return error.response
        try:
            check_required(method, request)
        except FoqsError as error:
            if is_first_login:
                self._count_unread_login()
            return self._server.failed(method, error, seqid)
        try:
            identity = self._authenticate(request.token) if method is AUTHENTICATE else self.who()
        except FoqsError as error:
            return self._server.failed(method, error, seqid)
        self._server.metrics.call_finished(method.name, OK, 0.0)
        return self._server.codec.encode_reply(method, identity, seqid)

    def holds_in(self, namespace: bytes, number: int) -> bool:
        """True if the caller may do anything in the namespace of this name and number, or is not limited."""
        context = self.context
        if self.is_peer or context.is_permissive or context.principal is EVERYBODY:
            return True
        return bool(context.principal.held_in(namespace.decode(), number))

    def refuse(self, method: Method, seqid: int) -> bytes:
        """Answer a call that is refused without a credential, whatever it is about. Raises FrameError."""
        self._note_barred(method)
        self._count_refusal()
        return self._server.failed(method, self.denial(method), seqid)

    def denial(self, method: Method) -> PermissionDeniedError:
        """The refusal of a call that is barred."""
        if self.is_dead:
            return PermissionDeniedError(
                f"{self.context.principal.name} may not call {method.name}: its credential has ended or was revoked, "
                "or it is disabled: connect anew with another one"
            )
        if self._entrance.is_for_hosts:
            return PermissionDeniedError(
                f"only hosts of this cluster may call {method.name} here: this is the port for hosts (peer_port); use "
                "the port for clients"
            )
        return PermissionDeniedError(
            f"nobody may call {method.name}: call authenticate with a token first, or connect with a client certificate"
        )

    def who(self) -> calls.Identity:
        """The answer to whoAmI."""
        credential, snapshot = self.credential, self._shared.snapshot
        name = self.context.principal.name
        if credential is None or self.is_dead:
            return calls.Identity(name, 0, [])
        return calls.Identity(name, credential.expires_at_ms, list(snapshot.grants_of(name)))

    def _authenticate(self, token: str) -> calls.Identity:
        """Take a token. Raises PermissionDeniedError, and OverloadedError if its principal has too many connections."""
        shared = self._shared
        if self.tls is None and not shared.tokens_without_tls and not is_loopback(self.address):
            raise self._wrong(
                TokenRefusedError(
                    "a token is not taken over a plain connection, where others can read it: connect with TLS, and "
                    "revoke this token",
                    "token without TLS",
                )
            )
        snapshot, now_ms = shared.snapshot, shared.wall_ms()
        try:
            found = snapshot.by_token(token, now_ms)
            if snapshot.principal(found, now_ms) is None:
                raise TokenRefusedError(
                    f"the credential of {found.principal} is not valid any more",
                    "disabled principal",
                    found.principal,
                    found.id,
                )
        except TokenRefusedError as error:
            raise self._wrong(error) from None
        before = self.credential
        if self.is_dead:
            ended = self.denial(AUTHENTICATE).message
            raise self._wrong(TokenRefusedError(ended, CREDENTIAL_ENDED, found.principal, found.id))
        if before is not None and before.principal != found.principal:
            raise self._wrong(
                TokenRefusedError(
                    f"this connection is one of {before.principal}, and the token is not: use a connection for each",
                    "token of another principal",
                    found.principal,
                    found.id,
                )
            )
        if not self._is_counted(found.principal):
            self._count_refusal()
            raise self._no_room(found.principal)
        self.credential = found
        self._follow(snapshot)
        shared.note_used(found, now_ms)
        return self.who()

    def _wrong(self, error: TokenRefusedError) -> TokenRefusedError:
        """Count and log a refused token. Raises FrameError if the address gets no more answers now."""
        self._shared.wrong_token(self.address, error.message)
        self._shared.refused(self.address, _denied(error.reason), error.principal, error.token_id)
        self._count_refusal()
        return error

    def _note_barred(self, method: Method) -> None:
        """Note a call that is refused because its caller has shown no credential that counts."""
        credential, tls, subject = self.credential, self.tls, f"call={method.name}"
        if credential is not None:
            self._shared.refused(self.address, _denied(CREDENTIAL_ENDED), credential.principal, credential.id, subject)
        elif tls is not None and tls.names:
            self._shared.refused(self.address, _denied("certificate of nobody"), shown=tls.names[0], subject=subject)
        else:
            self._shared.refused(self.address, _denied("no credential"), subject=subject)

    def _count_refusal(self) -> None:
        if not self._shared.may_answer(self.address):
            raise self._flood(REFUSALS, "too many calls of this address were refused in this second")

    def _flood(self, reason: str, detail: str) -> FrameError:
        """Note the end of a connection that has made too many calls about logins."""
        self._shared.refused(self.address, f"{_OVERLOADED}, {reason}", self.context.principal.name)
        return FrameError(reason, detail)

    def _count_unread_login(self) -> None:
        """Count a login without a token that can be read. Raises FrameError."""
        self._shared.refused(self.address, _denied("no token"))
        self._count_refusal()

    def _count_call(self) -> None:
        """Count a call that is neither refused nor the first login. Raises FrameError.

        It is answered at once and takes no turn behind the calls of others, so its number is bounded.
        """
        if self.is_barred:
            self._count_refusal()
        elif not self._shared.may_call(self.address):
            raise self._flood(SIGN_IN_CALLS, "too many calls of this address were about logins in this second")

    def _no_room(self, name: str) -> OverloadedError:
        self._shared.refused(self.address, f"{_OVERLOADED}, connections_per_principal_max", name)
        allowed = self._server.limits.connections_per_principal_max
        return OverloadedError(
            f"{name} has {allowed} connections to this host, which is its limit: close some", retry_after_ms=1_000
        )


def _denied(reason: str) -> str:
    """The outcome for the audit of a sign-in that was refused for this reason."""
    return f"{ErrorCode.PERMISSION_DENIED.name}, {reason}"


def _unlimited(before: Principal, name: str) -> Principal:
    """A principal of this name that holds everything; the one before if it is that already."""
    if before.name == name and before.cluster == EVERYBODY.cluster:
        return before
    return Principal(name, EVERYBODY.cluster, prefixes={"": EVERYBODY.cluster})
