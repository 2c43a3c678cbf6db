"""The proof with which a host shows another host its identity and its membership:
docs/decisions/0042-proof-of-hosts.md.

Both know a secret. The host that calls sends a nonce (`greet`) and gets one, but nothing derived from the secret. Then
it sends its proof (`join`) and gets the proof of the other side. A proof covers the caller, the callee, the connection
and the role of the prover, so it is good for nothing else. Pure: no sockets, no chance, no clock.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import NamedTuple

from foqs.model import limits
from foqs.model.cluster_secret import secret_id
from foqs.model.errors import InvalidArgumentError, PermissionDeniedError, UnavailableError, shown
from foqs.model.secret import Secret

PROOF = 2
"""The version of this proof, in the row of each host that knows it."""
OLD_PROOF = 1
"""The version of hello and prove (foqs/model/old_proof.py), the only one of older builds."""
SECRET_BYTES = 32
NONCE_BYTES = 32
HOST_ID_BYTES_MAX = 255
JOIN_MS_MAX = 5 * limits.SECOND_MS
"""A host that has greeted must send its proof within this time, or is refused."""

WRONG_PROOF = (
    "this is not the proof of a host of this cluster: it was made with another secret, or for another connection, as "
    "where something between the hosts ends TLS"
)
_KEY = b"foqs peers 2"
_CALLER, _CALLEE = b"caller\0", b"callee\0"


class PeerRefusedError(PermissionDeniedError):
    """The caller is refused as a host of this cluster, and its connection is closed."""

    def __init__(self, reason: str, message: str) -> None:
        """`reason` is one of a few fixed words, for the log."""
        super().__init__(message)
        self.reason = reason


class Greeting(NamedTuple):
    """The content of `greet` from both sides, from which the proofs are made."""

    cluster: str
    """The name of the cluster, on which all hosts of a meta database agree."""
    caller_id: str
    callee_id: str
    nonce_caller: bytes
    nonce_callee: bytes
    binding: bytes = b""
    """The value that ties the proof to the channel, see `binding_of`; empty without TLS."""

    def caller_proof(self, secret: Secret) -> bytes:
        """Return the proof of the calling side."""
        return self._proof(secret, _CALLER)

    def callee_proof(self, secret: Secret) -> bytes:
        """Return the proof of the called side."""
        return self._proof(secret, _CALLEE)

    def _proof(self, secret: Secret, role: bytes) -> bytes:
        key = _key_of(secret)
        names = [name.encode() for name in (self.cluster, self.caller_id, self.callee_id)]
        parts = (*names, self.nonce_caller, self.nonce_callee, self.binding)
        return hmac.digest(key, role + b"".join(len(part).to_bytes(4, "big") + part for part in parts), "sha256")


def _key_of(secret: Secret) -> bytes:
    """Return the key of the proofs that are made with this secret of the cluster."""
    return hmac.digest(secret.reveal(), _KEY, "sha256")


def binding_of(certificate: bytes) -> bytes:
    """Return the value that ties a proof to TLS connections on which the callee shows this certificate (DER).

    So an attacker between two hosts, with another certificate of the same authority, cannot hand a proof on. It is
    tls-server-end-point of RFC 5929 with SHA-256 for every certificate.
    """
    return hashlib.sha256(certificate).digest()


class PeerLink:
    """The state of a connection to this host with regard to the proof of its caller. The connection owns it.

    It checks the order of calls: each verb comes once, in this order, and no other call before the end.
    """

    __slots__ = (
        "binding",
        "challenge",
        "greeting",
        "has_failed",
        "host_id",
        "host_uris",
        "is_fresh",
        "only_older",
        "refusal",
        "secret_id",
        "since_s",
    )

    def __init__(
        self,
        *,
        is_fresh: bool,
        since_s: float,
        binding: bytes = b"",
        host_uris: Sequence[str] | None = None,
        only_older: bool = False,
    ) -> None:
        """`is_fresh` is True if the connection has had no other call. `since_s` is the time of a steady clock.

        `binding` is that of the certificate which this host has shown on the connection. `host_uris` are the URIs in
        the caller's certificate, None without one of the authority of hosts. `only_older` is True if the caller came to
        the port for clients although hosts have one of their own, which hosts of older builds do not know.
        """
        self.only_older = only_older
        self.is_fresh = is_fresh
        self.since_s = since_s
        self.binding = binding
        self.host_uris = host_uris
        self.greeting: Greeting | None = None
        self.challenge = b""
        """The challenge that was sent to a host of an older build."""
        self.host_id = ""
        """The host that has proven to be on the other side."""
        self.secret_id = ""
        """The id of the secret that it has proven to know."""
        self.has_failed = False
        self.refusal: PeerRefusedError | None = None
        """The reason to close the connection, once the caller has its response."""

    def begin(self) -> None:
        """Begin the proof. Raises PeerRefusedError if another call came first."""
        if not self.is_fresh:
            raise PeerRefusedError(
                "not_first", "greet is the first call of a host on a connection, and comes once: open another one"
            )
        self.is_fresh = False

    def end(self, now_s: float) -> None:
        """Begin the check of the proof, for which the host has one try. Raises PeerRefusedError without a greeting."""
        if self.host_id or self.has_failed or not (self.greeting or self.challenge):
            raise PeerRefusedError("not_greeted", "join comes once, after greet, on the same connection")
        if self.is_late(now_s):
            raise PeerRefusedError("late", f"no proof has come within {JOIN_MS_MAX} ms of the first call")

    def is_late(self, now_s: float) -> bool:
        """True if the host has taken too long for its proof."""
        return not self.host_id and now_s - self.since_s > JOIN_MS_MAX / 1000


def greeted(link: PeerLink, said: Greeting, version: int, me: str) -> None:
    """Take the greeting of a host that calls host `me`. Raises PeerRefusedError and InvalidArgumentError."""
    link.begin()
    check_host_id(said.caller_id)
    if version != PROOF:
        raise InvalidArgumentError(f"version is {version}, and this host knows {PROOF}")
    if len(said.nonce_caller) != NONCE_BYTES:
        raise InvalidArgumentError(f"nonce has {len(said.nonce_caller)} bytes, not {NONCE_BYTES}")
    if said.callee_id != me:
        # A stranger is not told the id of this host, without which it gets no further.
        raise PeerRefusedError(
            "another_callee", f"host {shown(said.callee_id)} is not here: another one is, as after a start anew"
        )
    if said.caller_id == me:
        raise PeerRefusedError("own_id", f"{me} is this host itself")
    link.greeting = said


def joined(link: PeerLink, proof: bytes, secrets: Sequence[Secret], now_s: float) -> bytes:
    """Check the proof of the host that has greeted. Returns the proof of this side, by the same one of the `secrets`.

    Raises PeerRefusedError.
    """
    link.end(now_s)
    said = link.greeting
    # All are compared, so that the time does not show which one it is.
    found = [one for one in secrets if said is not None and hmac.compare_digest(proof, said.caller_proof(one))]
    if said is None or not found:
        link.has_failed = True
        raise PeerRefusedError("wrong_proof", WRONG_PROOF)
    link.host_id, link.secret_id = said.caller_id, secret_id(found[0])
    return said.callee_proof(found[0])


def is_of_callee(said: Greeting, proof: bytes, secret: Secret) -> bool:
    """True if the intended host has answered."""
    return hmac.compare_digest(proof, said.callee_proof(secret))


def check_host_id(host_id: str) -> None:
    """Raise InvalidArgumentError if this cannot be the id of a host."""
    if not 0 < len(host_id.encode()) <= HOST_ID_BYTES_MAX:
        raise InvalidArgumentError(f"an id of a host has 1..{HOST_ID_BYTES_MAX} bytes, not {len(host_id.encode())}")


def not_known_yet(host_id: str) -> UnavailableError:
    return UnavailableError(
        f"host {host_id[:80]} is not known here to live, as a host that started a moment ago is not yet: try again",
        retry_after_ms=200,
        nothing_done=True,
    )
