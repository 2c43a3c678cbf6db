"""The proof between hosts of builds that do not know foqs/model/peer_proof.py yet: hello and prove.

The callee signs any challenge, so a stranger can have one host sign the challenge of another. Therefore hosts use this
proof only with hosts whose rows show no newer version, while such hosts run.
"""

from __future__ import annotations

import hmac

from foqs.model.cluster_secret import secret_id
from foqs.model.errors import InvalidArgumentError
from foqs.model.peer_proof import PeerLink, PeerRefusedError, check_host_id
from foqs.model.secret import Secret

CHALLENGE_BYTES = 16


def proof_of(secret: Secret, shown_by: str, shown_to: str, challenge: bytes) -> bytes:
    """Return the proof that host `shown_by` shows to host `shown_to`, which has sent the challenge."""
    names = [name.encode() for name in (shown_by, shown_to)]
    message = b"".join(len(part).to_bytes(4, "big") + part for part in (*names, challenge))
    return hmac.digest(secret.reveal(), message, "sha256")


def is_proof(proof: bytes, secret: Secret, shown_by: str, shown_to: str, challenge: bytes) -> bool:
    return hmac.compare_digest(proof, proof_of(secret, shown_by, shown_to, challenge))


def said_hello(link: PeerLink, host_id: str, challenge: bytes, mine: bytes) -> None:
    """Begin with a host of an older build, to which the challenge `mine` is sent."""
    link.begin()
    check_host_id(host_id)
    if len(challenge) != CHALLENGE_BYTES:
        raise InvalidArgumentError(f"challenge has {len(challenge)} bytes, not {CHALLENGE_BYTES}")
    link.challenge = mine


def proved(link: PeerLink, me: str, host_id: str, challenge: bytes, proof: bytes, secret: Secret, now_s: float) -> None:
    """Take its proof. Raises PeerRefusedError."""
    link.end(now_s)
    check_host_id(host_id)
    if not link.challenge or challenge != link.challenge or not is_proof(proof, secret, host_id, me, challenge):
        link.has_failed = True
        raise PeerRefusedError("wrong_proof", "this is not the proof of a host of this cluster")
    link.host_id, link.secret_id = host_id, secret_id(secret)
