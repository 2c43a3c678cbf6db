"""Makes the records of a host beside its metrics, from its configuration: the event log, and the audit."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from foqs.config import HostConfig
from foqs.host.access.refused_calls import Refusals
from foqs.host.audit.trail import Audit, AuditTable
from foqs.host.event_log.log_service import EventLog, EventLogOptions, EventLogSource
from foqs.host.metrics.meters import ItemMeters
from foqs.host.registry.namespaces import Namespaces
from foqs.model.item import ItemEvent
from foqs.parts import Parts
from foqs.transport.verb_table import request_ids


def make_event_log(config: HostConfig, parts: Parts, namespaces: Namespaces, items: ItemMeters) -> EventLog | None:
    """Make the event log, or None if it has no directory."""
    if not config.event_log_dir:
        return None
    options = EventLogOptions(
        config.host_name, Path(config.event_log_dir), config.event_log_bytes_max, config.event_log_days
    )
    source = EventLogSource(
        namespaces.name_of,
        namespaces.settings.events_per_mille,
        partial(items.counts_of, ItemEvent.RATE_LIMITED),
    )
    event_log = parts.event_log(options, source)
    namespaces.settings.has_event_log = True
    return event_log


def make_audit(table: AuditTable, host_id: str, parts: Parts, namespaces: Namespaces, refusals: Refusals) -> Audit:
    """Make the audit, which also notes the calls without permission among the refusals."""
    return Audit(
        table,
        host_id,
        parts.wall_ms,
        parts.monotonic_s,
        namespaces.settings_named,
        request_ids(parts.wall_ms(), "a"),
        lambda who, verb, namespace: refusals.note(who, verb, namespace, parts.wall_ms()),
    )
