"""The records of the audit: who changed what or read payloads, from where, and with which outcome."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_TOKEN = re.compile(r"(foqs_[a-z2-7]{12})_\S{20,}")
"""A token, or most of one, that was pasted somewhere. Names of namespaces and principals can begin like a short one."""
SUBJECT_BYTES_MAX = 512
CHANGES_BYTES_MAX = 2_048
NAME_BYTES_MAX = 64
"""The longest name of a principal, a verb, a namespace, an outcome, or an address."""
CREDENTIAL_BYTES_MAX = 255


class AuditPlace(NamedTuple):
    """The place of a record among all records, which are ordered by time."""

    at_ms: int
    host: str
    number: int


START = AuditPlace(0, "", 0)

SIGN_IN = "signIn"
"""The name under which refused sign-ins are recorded. No verb has it."""
RELOAD_CERTIFICATES = "reloadCertificates"
RELOAD_CONFIGURATION = "reloadConfiguration"
READ_SECRET_FILE = "readSecretFile"
NEW_PEER_SECRET = "newPeerSecret"
FINISH_PEER_SECRET = "finishPeerSecret"
CANCEL_PEER_SECRET = "cancelPeerSecret"
MAKE_ADMINISTRATOR = "makeAdministrator"
ENFORCE_ACCESS = "enforceAccess"
PRUNE_AUDIT = "pruneAudit"
"""The names of changes that no call of a verb makes."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """A call that was audited, or the sum of several of the same kind.

    at_ms: the time of the record by the clock of its host: the end of the call, or of the window of a sum, whose
    `changes` begin with the times of its first and its last call.  host: the process that was asked.  number: its own
    count of records.  credential: the id of the token or the name in the certificate by which the principal was known,
    or "".  subject: the objects that the call named in its namespace or in the cluster.  changes: the settings that it
    set.  outcome: OK, or the code of its error.  took_ms, count: of all calls that this record sums up; 0 for a further
    part of one call.
    """

    at_ms: int
    host: str
    number: int
    request_id: str
    principal: str
    credential: str
    address: str
    verb: str
    namespace_name: str
    subject: str
    changes: str
    outcome: str
    took_ms: int = 0
    count: int = 1

    @property
    def place(self) -> AuditPlace:
        return AuditPlace(self.at_ms, self.host, self.number)


@dataclass(frozen=True, slots=True)
class AuditNote:
    """An event to record that is no call of a verb: a refused sign-in, or a change of a secret.

    what: its name in the place of a verb.  principal, credential, address: as in a record, as far as they are known.
    No text in it has a secret.
    """

    what: str
    outcome: str = "OK"
    principal: str = ""
    credential: str = ""
    address: str = ""
    subject: str = ""
    changes: str = ""

    def record(self, at_ms: int, host: str, number: int = 0, request_id: str = "") -> AuditRecord:
        """Return the record of this event, whose texts are cut where they are too long."""
        return AuditRecord(
            at_ms=at_ms,
            host=host,
            number=number,
            request_id=request_id,
            principal=clipped(self.principal, NAME_BYTES_MAX),
            credential=clipped(self.credential, CREDENTIAL_BYTES_MAX),
            address=clipped(self.address, NAME_BYTES_MAX),
            verb=self.what,
            namespace_name="",
            subject=clipped(self.subject, SUBJECT_BYTES_MAX),
            changes=clipped(self.changes, CHANGES_BYTES_MAX),
            outcome=clipped(self.outcome, NAME_BYTES_MAX),
        )


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """The records that a reader wants: all, or those of one principal, namespace or verb."""

    principal: str | None = None
    namespace_name: str | None = None
    verb: str | None = None

    def wants(self, record: AuditRecord) -> bool:
        return (
            self.principal in (None, record.principal)
            and self.namespace_name in (None, record.namespace_name)
            and self.verb in (None, record.verb)
        )


@dataclass(slots=True)
class AuditPage:
    """A page of records, oldest first; it can be empty. `next_page_token` is "" on the last one."""

    records: Sequence[AuditRecord] = field(default_factory=list)
    next_page_token: str = ""


def clipped(text: str, bytes_max: int) -> str:
    """Return the text of a record without tokens: all, or the beginning that fits with an ellipsis into `bytes_max`."""
    # A caller can send megabytes, of which no more is read.
    encoded = _TOKEN.sub(r"\1_***", text[: bytes_max + 1]).encode(errors="replace")
    if len(encoded) <= bytes_max:
        return encoded.decode()
    return encoded[: bytes_max - 3].decode(errors="ignore") + "…"
