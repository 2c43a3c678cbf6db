"""Bounds for the meta database: how long its sessions can be silent, and how bounds grow with the round trip.

docs/decisions/0045-slow-meta-database.md has the reasons.
"""

from __future__ import annotations

from foqs.model import limits

META_SILENT_MS_MAX = 10 * limits.SECOND_MS
"""The server of the meta database ends a session that is silent for this long, and with it the session's row locks."""
META_SESSIONS_MARKED_MAX = 32
"""Sessions of one host with the meta database that others can find, to end them once the host is dead."""
ROUND_TRIP_MS_MAX = limits.SECOND_MS
"""Bounds grow with the round trip to the meta database up to this. Beyond it, no host is declared dead."""
ROUND_TRIPS_OF_SILENCE = 8
"""A host is dead after limits.HOST_DEAD_MS and this many round trips, because it can need a new session and a second
try.
"""
META_SLOW_MS = 100
"""Round trip from which on hosts report the meta database as slow."""
HOST_ROW_MS = 10 * limits.MINUTE_MS
"""Hosts delete the rows of hosts whose last heartbeat is older than this, or as far in the future."""
HOST_ROW_READ_MS = limits.MINUTE_MS
"""A row counts, and is read, for this long after its last heartbeat."""
HOSTS_SWEEP_MS = 10 * limits.SECOND_MS
"""How often a host checks for such rows."""
HOSTS_SWEPT_MAX = 1_000
"""The most rows that one check deletes."""

assert HOST_ROW_READ_MS > 2 * (limits.HOST_DEAD_MS + ROUND_TRIPS_OF_SILENCE * ROUND_TRIP_MS_MAX), "the dead are seen"
assert META_SILENT_MS_MAX > 2 * limits.META_STATEMENT_MS_MAX, "a host that waits for an answer is not silent"
