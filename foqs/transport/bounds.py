"""The bounds of a server, and the interface of its metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from foqs.model import limits
from foqs.model.access import AccessGrant, AccessMode, Credential
from foqs.model.principal import Principal
from foqs.transport.fair_scheduler import SchedulerLimits
from foqs.wire.frames import FrameTimes

UNKNOWN_CONNECTIONS_PER_ADDRESS_MAX = 100
"""Connections of one client address that are not logged in, while access is enforced."""
PEER_PORT_CONNECTIONS_MAX = 2 * limits.HOSTS_MAX + limits.UNKNOWN_CONNECTIONS_MAX
"""Connections of a port for hosts: each host has one, and two while one replaces another. The others are of callers
that have not proven to be hosts.
"""
LOGIN_FRAME_BYTES_MAX = 4 * limits.KIB
"""A frame of a connection that is not logged in, while access is enforced."""
LOGIN_MS_MAX = 10 * limits.SECOND_MS
"""While access is enforced, a connection that is not logged in after this time is closed."""
SIGN_IN_CALLS_PER_SWEEP_MAX = 100
"""Calls that a connection makes within half a second to log in, or without being logged in."""
REFUSALS_PER_ADDRESS_MAX = 50
"""Wrong tokens and calls without a login that one address gets an answer to in a second. More close the connection."""
SIGN_IN_CALLS_PER_ADDRESS_MAX = 1_000
"""Calls of callers about their login that one address gets an answer to in a second, but for the first login of each
connection, because thousands of clients can come back at once. More close the connection. Such a call takes 35 µs.
"""
CONNECTION_SWEEP_MS = 500
"""Interval of the checks of connections' deadlines. A deadline can be overrun by this and by the check itself, which
takes 0.2 s for 10,000 connections.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits:
    """The bounds of a server; the defaults are those of `foqs.model.limits`, tests shorten them."""

    connections_max: int = limits.CONNECTIONS_MAX
    connections_per_address_max: int = limits.CONNECTIONS_PER_ADDRESS_MAX
    peer_connections_max: int = PEER_PORT_CONNECTIONS_MAX
    unknown_connections_max: int = limits.UNKNOWN_CONNECTIONS_MAX
    unknown_connections_per_address_max: int = UNKNOWN_CONNECTIONS_PER_ADDRESS_MAX
    connections_per_principal_max: int = limits.CONNECTIONS_PER_PRINCIPAL_MAX
    login_ms_max: int = LOGIN_MS_MAX
    refusals_per_address_max: int = REFUSALS_PER_ADDRESS_MAX
    sign_in_calls_per_address_max: int = SIGN_IN_CALLS_PER_ADDRESS_MAX
    calls_in_flight_max: int = limits.CALLS_IN_FLIGHT_PER_CONNECTION_MAX
    call_bytes_max: int = limits.CALL_BYTES_PER_CONNECTION_MAX
    peer_calls_in_flight_max: int = limits.CALLS_IN_FLIGHT_PER_PEER_MAX
    peer_call_bytes_max: int = limits.CALL_BYTES_PER_PEER_MAX
    waiting_bytes_max: int = limits.WAITING_BYTES_PER_CONNECTION_MAX
    peer_waiting_bytes_max: int = limits.WAITING_BYTES_PER_PEER_MAX
    all_calls_in_flight_max: int = limits.CALLS_IN_FLIGHT_MAX
    all_call_bytes_max: int = limits.CALL_BYTES_MAX
    long_poll_topics_per_address_max: int = limits.LONG_POLL_TOPICS_PER_ADDRESS_MAX
    scheduling: SchedulerLimits = field(default_factory=SchedulerLimits)
    frame_times: FrameTimes = field(default_factory=FrameTimes)
    idle_ms_max: int = limits.IDLE_MS_MAX
    write_stall_ms_max: int = limits.WRITE_STALL_MS_MAX
    write_buffer_bytes_max: int = limits.WRITE_BUFFER_BYTES_MAX
    partial_frame_bytes_max: int = limits.PARTIAL_FRAME_BYTES_MAX
    partial_frame_bytes_per_address_max: int = limits.PARTIAL_FRAME_BYTES_PER_ADDRESS_MAX
    unsent_bytes_max: int = limits.UNSENT_ANSWER_BYTES_MAX
    drain_ms_max: int = limits.DRAIN_MS_MAX
    part_ms: int = limits.PART_MS
    sweep_ms: int = CONNECTION_SWEEP_MS


class TransportMetrics(Protocol):
    """Takes the counts of a server's connections and calls. Reasons and outcomes are a few fixed words."""

    def connection_opened(self) -> None: ...

    def connection_closed(self) -> None: ...

    def connection_refused(self, reason: str) -> None: ...

    def protocol_error(self, reason: str) -> None: ...

    def handshake_ended(self, outcome: str) -> None:
        """Count a TLS handshake: `done`, `failed`, `refused` because too many waited, or `plain`, which is none."""

    def call_finished(self, method: str, outcome: str, seconds: float) -> None: ...

    def long_poll_finished(self, outcome: str, seconds: float) -> None:
        """Count a dequeue that could wait for items, so its time is no measure of the host's speed."""


class KnownNamespaces(Protocol):
    """The namespaces that a host knows, by which the scheduler distinguishes tenants."""

    @property
    def number_by_name(self) -> Mapping[bytes, int]:
        """The number of each namespace, by name."""


class Snapshot(Protocol):
    """The principals and their credentials at one time. It never changes; another one takes its place."""

    @property
    def mode(self) -> AccessMode:
        """The treatment of calls without permission."""

    def by_token(self, token: str, now_ms: int) -> Credential:
        """Return the credential of a token. Raises TokenRefusedError if it is none."""

    def by_names(self, names: Sequence[str], now_ms: int) -> Credential | None:
        """Return the credential of a client certificate with these names, if any of them is one."""

    def principal(self, credential: Credential, now_ms: int) -> Principal | None:
        """Return the principal of a credential; None if that has ended, was revoked, or its principal is disabled."""

    def grants_of(self, principal: str) -> Sequence[AccessGrant]:
        """Return the grants of the principal of this name."""


class Identities(Protocol):
    """The principals that a host knows."""

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot."""

    def note_used(self, credential: Credential, now_ms: int) -> None:
        """Note that a token was shown and taken."""
