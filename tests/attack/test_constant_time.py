"""Whatever proves who somebody is, is compared in a time that does not tell how much of a guess is right."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from foqs.host.access import snapshot as snapshots
from foqs.host.access.snapshot import AccessSnapshot
from foqs.model import old_proof, peer_proof
from foqs.model import secret as secrets
from foqs.model.access import AccessGrant, AccessMode, AccessRows, PrincipalRow, TokenRow
from foqs.model.access_tokens import RANDOM_BYTES, Token, hash_of, new_token, parse, text_of
from foqs.model.errors import PermissionDeniedError
from foqs.model.peer_proof import Greeting, PeerLink, PeerRefusedError
from foqs.model.secret import Secret

NOW_MS = 1_800_000_000_000
KEY = Secret(b"k" * 32)
SAID = Greeting("cluster", "caller", "callee", b"1" * 32, b"2" * 32)


@contextmanager
def compared(place: str) -> Iterator[list[tuple[bytes, bytes]]]:
    """What is compared by `hmac.compare_digest`, as a module calls it, whose arguments are told."""
    pairs: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        pairs.append((one, other))
        return hmac_compare(one, other)

    hmac_compare = hmac.compare_digest
    with patch(place, compare):
        yield pairs


def test_the_hash_of_a_token_is_compared_in_constant_time() -> None:
    """Once for each token, also for one whose id nobody has: else the time would tell which ids there are."""
    right = new_token(bytes(range(RANDOM_BYTES)))
    token = parse(right)
    forged = text_of(Token(token.id, b"\xff" * 32))
    foreign = new_token(b"\x07" * RANDOM_BYTES)
    row = TokenRow(token.id, "mailer", hash_of(token), "", 1, "admin", 0, 0)
    principal = PrincipalRow("mailer", True, (AccessGrant("ns", ("worker",)),), 1)
    snapshot = AccessSnapshot(AccessRows(AccessMode.ENFORCED, 1, (principal,), (row,), ()))
    assert snapshots.compare_digest is hmac.compare_digest
    for text, is_taken in ((right, True), (forged, False), (foreign, False)):
        with compared("foqs.host.access.snapshot.compare_digest") as pairs:
            if is_taken:
                snapshot.by_token(text, NOW_MS)
            else:
                with pytest.raises(PermissionDeniedError):
                    snapshot.by_token(text, NOW_MS)
        ((shown, known),) = pairs
        assert shown == hash_of(parse(text))
        assert len(known) == len(shown), "the comparison of two lengths ends at once"


@pytest.mark.parametrize("right_bytes", [0, 1, 31, 32])
def test_the_proof_of_a_host_is_compared_in_constant_time(right_bytes: int) -> None:
    proof = SAID.caller_proof(KEY)
    shown = proof[:right_bytes] + bytes(byte ^ 1 for byte in proof[right_bytes:])
    link = PeerLink(is_fresh=True, since_s=0.0)
    link.begin()
    link.greeting = SAID
    with compared("hmac.compare_digest") as pairs:
        if right_bytes == len(proof):
            peer_proof.joined(link, shown, [KEY], 1.0)
        else:
            with pytest.raises(PeerRefusedError):
                peer_proof.joined(link, shown, [KEY], 1.0)
        assert peer_proof.is_of_callee(SAID, SAID.callee_proof(KEY), KEY)
        assert not old_proof.is_proof(shown, KEY, "a", "b", b"c" * 16)
    assert [one for one, _ in pairs] == [shown, SAID.callee_proof(KEY), shown]


def test_secrets_are_compared_in_constant_time() -> None:
    with compared("foqs.model.secret.compare_digest") as pairs:
        assert Secret(b"one") != Secret(b"two")
        assert Secret(b"one") == Secret(b"one")
    assert pairs == [(b"one", b"two"), (b"one", b"one")]
    assert secrets.compare_digest is hmac.compare_digest
