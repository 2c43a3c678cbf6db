"""The common knowledge of a server's connections about callers: the snapshot of access, counts, and wrong tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import structlog

from foqs.model.access import AccessGrant, AccessMode, Credential, TokenRefusedError
from foqs.model.audit import SIGN_IN, AuditNote
from foqs.model.principal import NOBODY, Principal
from foqs.transport.bounds import Identities, Snapshot, TransportLimits

_log = structlog.get_logger(__name__)

_LOGGED_PER_SECOND = 10
REFUSALS = "refusals"
SIGN_IN_CALLS = "sign_in_calls"
"""The reasons of connections that end because their callers were refused too often, or call too often."""
PEER = "\0peer"
"""Stands for the principal of connections of hosts, which are bounded elsewhere. No principal has this name."""


class SignIns:
    """Counts the connections of each principal and those that are not logged in, and bounds wrong tokens by address."""

    def __init__(
        self,
        identities: Identities,
        wall_ms: Callable[[], int],
        now_s: Callable[[], float],
        bounds: TransportLimits,
        *,
        tokens_without_tls: bool = False,
        is_for_hosts: bool = False,
        note_refusal: Callable[[AuditNote], None] = lambda note: None,
    ) -> None:
        """`now_s` is the time of the event loop. `tokens_without_tls` takes tokens over plain connections too.

        With `is_for_hosts` callers cannot log in, and are bounded in all modes of access until they have proven to be
        hosts. `note_refusal` takes each sign-in that is refused, for the audit.
        """
        self._is_for_hosts = is_for_hosts
        self._identities = identities
        self.note_used = identities.note_used
        self.wall_ms = wall_ms
        self.now_s = now_s
        self._limits = bounds
        self.tokens_without_tls = tokens_without_tls
        self._note_refusal = note_refusal
        self._unknown: Counter[str] = Counter()
        """Connections that are not logged in, by address."""
        self._unknown_count = 0
        self._by_principal: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        """Refusals in the current second, by address."""
        self._called: Counter[str] = Counter()
        """Calls about a login in the current second, by address."""
        self._refused_since_s = 0.0
        self._logged_count = 0
        self._unlogged_count = 0

    @property
    def snapshot(self) -> Snapshot:
        """The principals as they are now."""
        return self._identities.snapshot

    @property
    def is_enforced(self) -> bool:
        return self._identities.snapshot.mode is AccessMode.ENFORCED

    # --- connections ---

    def too_many_unknown(self, address: str) -> str:
        """Return the bound that one more connection would break before it is logged in, or empty text."""
        if not (self.is_enforced or self._is_for_hosts):
            return ""
        if self._unknown_count >= self._limits.unknown_connections_max:
            return "unknown_connections_max"
        if self._unknown.get(address, 0) >= self._limits.unknown_connections_per_address_max:
            return "unknown_connections_per_address_max"
        return ""

    def has_room_for(self, principal: str) -> bool:
        """True if one more connection can be that of this principal."""
        return not self.is_enforced or self._by_principal[principal] < self._limits.connections_per_principal_max

    def enter(self, address: str, name: str) -> None:
        """Count a connection of this principal, or one that is not logged in if the name is empty."""
        if name:
            self._by_principal[name] += 1
        else:
            self._unknown_count += 1
            self._unknown[address] += 1

    def leave(self, address: str, name: str) -> None:
        """Stop counting a connection that was counted under this name."""
        counter, key = (self._by_principal, name) if name else (self._unknown, address)
        counter[key] -= 1
        if not counter[key]:
            del counter[key]
        if not name:
            self._unknown_count -= 1

    # --- refusals ---

    def refused(self, address: str, outcome: str, principal: str = "", shown: str = "", subject: str = "") -> None:
        """Note a refused sign-in for the audit. `shown` is the id of the token or the name in the certificate."""
        self._note_refusal(AuditNote(SIGN_IN, outcome, principal or NOBODY.name, shown, address, subject))

    def may_answer(self, address: str) -> bool:
        """Count a refusal. False if so many came from the address in this second that it gets no answer."""
        self._turn_second()
        self._refused[address] += 1
        return self._refused[address] <= self._limits.refusals_per_address_max

    def may_call(self, address: str) -> bool:
        """Count a call about a login, which is no refusal. False if the address made so many in this second that it
        gets no answer.
        """
        self._turn_second()
        self._called[address] += 1
        return self._called[address] <= self._limits.sign_in_calls_per_address_max

    def wrong_token(self, address: str, reason: str) -> None:
        """Log that a token was refused, a few each second, and count the others. `reason` never has the token."""
        self._turn_second()
        if self._logged_count < _LOGGED_PER_SECOND:
            self._logged_count += 1
            _log.warning("token_refused", address=address, reason=reason)
        else:
            self._unlogged_count += 1

    def end_second(self) -> None:
        """Log what was not logged for itself in a second that is over. The sweep calls this."""
        self._turn_second()

    def _turn_second(self) -> None:
        now_s = self.now_s()
        if now_s - self._refused_since_s < 1:
            return
        if self._unlogged_count:
            _log.warning("further_tokens_refused", count=self._unlogged_count)
        self._refused.clear()
        self._called.clear()
        self._refused_since_s = now_s
        self._logged_count = self._unlogged_count = 0


class OpenAccess:
    """Knows no principal, and is open to everybody: the access of a server that was given no other."""

    mode = AccessMode.OPEN

    @property
    def snapshot(self) -> Snapshot:
        return self

    def by_token(self, token: str, now_ms: int) -> Credential:
        raise TokenRefusedError("this host knows no tokens", "unknown token")

    def by_names(self, names: Sequence[str], now_ms: int) -> Credential | None:
        return None

    def principal(self, credential: Credential, now_ms: int) -> Principal | None:
        return None

    def grants_of(self, principal: str) -> Sequence[AccessGrant]:
        return ()

    def note_used(self, credential: Credential, now_ms: int) -> None:
        """There are none."""
