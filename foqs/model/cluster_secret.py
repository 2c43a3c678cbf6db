"""The secret of the cluster and the next one, while it is replaced: docs/decisions/0059-rotation.md.

Each secret has an id, by which hosts say in their rows which secrets they know. Pure: no clock, no chance.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from foqs.model.secret import Secret

SECRET_ID_CHARS: Final = 12
SECRET_IDS_MAX: Final = 2
"""The secrets that the meta database has at most: the current one and the next."""
_ID: Final = b"foqs secret id"


class KnownSecret(NamedTuple):
    """A secret and its id."""

    secret: Secret
    id: str


class ClusterSecret(NamedTuple):
    """The row of the meta database."""

    current: Secret
    next: Secret | None = None
    began_at_ms: int = 0
    """The time at which the next one was proposed."""

    @property
    def known(self) -> tuple[KnownSecret, ...]:
        """The current one, and the next one if it is proposed."""
        secrets = (self.current,) if self.next is None else (self.current, self.next)
        return tuple([KnownSecret(secret, secret_id(secret)) for secret in secrets])

    @property
    def ids(self) -> tuple[str, ...]:
        """Their ids."""
        return tuple([one.id for one in self.known])


class SecretState(Enum):
    """The knowledge of a host, for operators."""

    READY = "ready"
    """It knows the newest secret."""
    WAITING = "not yet"
    """It has not read the newest secret."""
    OLDER_BUILD = "older build"
    """It reads the secret at its start alone."""


class HostSecrets(NamedTuple):
    """A host's row with regard to secrets."""

    host_id: str
    seen_ms: int
    """The age of its last heartbeat."""
    secret_ids: tuple[str, ...]

    def state(self, secret: ClusterSecret) -> SecretState:
        if not self.secret_ids:
            return SecretState.OLDER_BUILD
        return SecretState.READY if secret.ids[-1] in self.secret_ids else SecretState.WAITING


def secret_id(secret: Secret) -> str:
    """Return the id of a secret, which tells nothing about it because a secret has 256 random bits."""
    return hmac.digest(secret.reveal(), _ID, "sha256").hex()[:SECRET_ID_CHARS]


def packed_ids(secret_ids: Iterable[str]) -> bytes:
    """Return the ids as a row of a host holds them."""
    return " ".join(secret_ids).encode()


def unpacked_ids(packed: bytes) -> tuple[str, ...]:
    return tuple(packed.decode("ascii", "replace").split()[:SECRET_IDS_MAX])


def not_ready(hosts: Iterable[HostSecrets], secret: ClusterSecret) -> list[HostSecrets]:
    """Return the hosts that would be strangers if only the newest secret counted."""
    return [host for host in hosts if host.state(secret) is not SecretState.READY]
