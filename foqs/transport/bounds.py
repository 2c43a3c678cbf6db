"""The bounds of a server, and the interface of its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from foqs.model import limits
from foqs.transport.fair_scheduler import SchedulerLimits
from foqs.wire.frames import FrameTimes

CONNECTION_SWEEP_MS = 500
"""Interval of the checks of connections' deadlines. A deadline can be overrun by this and by the check itself, which
takes 0.2 s for 10,000 connections.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits:
    """The bounds of a server; the defaults are those of `foqs.model.limits`, tests shorten them."""

    connections_max: int = limits.CONNECTIONS_MAX
    connections_per_address_max: int = limits.CONNECTIONS_PER_ADDRESS_MAX
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

    def call_finished(self, method: str, outcome: str, seconds: float) -> None: ...

    def long_poll_finished(self, outcome: str, seconds: float) -> None:
        """Count a dequeue that could wait for items, so its time is no measure of the host's speed."""


class KnownNamespaces(Protocol):
    """The namespaces that a host knows, by which the scheduler distinguishes tenants."""

    @property
    def number_by_name(self) -> Mapping[bytes, int]:
        """The number of each namespace, by name."""
