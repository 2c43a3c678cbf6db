"""The content of a meta database in memory, which several hosts can reach."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from foqs.model.access import NO_ACCESS_ROWS, AccessRows
from foqs.model.audit import AuditPlace, AuditRecord
from foqs.model.bulk_work import BulkPart, BulkWork
from foqs.model.census import Census, CensusAnswer
from foqs.model.cluster import HostRow, ShardRow, ShardUse
from foqs.model.errors import UnknownNamespaceError
from foqs.model.groups import Groups
from foqs.model.jobs import Job
from foqs.model.namespace import Namespace
from foqs.model.policies import Policies
from foqs.model.slot_gates import NO_GATES, SlotGate
from foqs.model.slots import NO_SLOTS, SlotMove, SlotTable
from foqs.model.stocks import Topic
from foqs.storage.meta.meta_jobs import JobCounts, JobKey
from foqs.testing.fake_sessions import FakeSessions


@dataclass(slots=True)
class ClusterTables:
    """The committed rows of the cluster's shards."""

    shards: dict[int, ShardRow] = field(default_factory=dict)
    name: str = ""
    secret: bytes = b""
    """Not a Secret, because backups copy the tables."""
    next_secret: bytes = b""
    id: bytes = b""

    @property
    def epochs(self) -> dict[int, int]:
        """The last epoch of each shard that was not removed."""
        return {row.shard_id: row.epoch for row in self.shards.values() if row.use is not ShardUse.REMOVED}

    def shard(self, shard_id: int) -> ShardRow:
        """The row of the shard, or the row before the first write."""
        return self.shards.get(shard_id) or ShardRow(shard_id, 0, "", 0, "", ShardUse.SERVING, "", "", "", 0)


@dataclass(slots=True)
class BulkRecord:
    """The definition and the parts of a bulk job."""

    work: BulkWork
    parts: dict[int, BulkPart] = field(default_factory=dict)
    active_at_ms: dict[int, int] = field(default_factory=dict)
    """The last mark of each part."""
    error: str = ""


@dataclass(slots=True)
class JobTables:
    """The committed rows."""

    jobs: dict[JobKey, Job] = field(default_factory=dict)
    hosts: dict[tuple[JobKey, str, int], tuple[int, JobCounts]] = field(default_factory=dict)
    """The last active time and the counts of each process of a host; by job, name of the host and its start."""
    bulk: dict[JobKey, BulkRecord] = field(default_factory=dict)
    bulk_running: Mapping[int, Mapping[str, bool]] = field(default_factory=dict)
    """The bulk jobs that run, replaced with every change."""


@dataclass(slots=True)
class MetaTables:
    """The committed rows. A copy is a backup, or a replica that falls behind."""

    namespaces: dict[str, Namespace] = field(default_factory=dict)
    number_last: int = 0
    censuses: dict[int, tuple[Census, int]] = field(default_factory=dict)
    """Open censuses by id, each with the time at which it expires."""
    answers: dict[int, dict[int, CensusAnswer]] = field(default_factory=dict)
    """Answers by census and shard."""
    cluster: ClusterTables = field(default_factory=ClusterTables)
    jobs: JobTables = field(default_factory=JobTables)
    slots: SlotTable = NO_SLOTS
    slot_move: SlotMove | None = None
    gates: tuple[SlotGate, ...] = NO_GATES
    """Gates of slots, replaced with every change."""
    quotas: dict[int, bytes] = field(default_factory=dict)
    """The packed books of quotas, by namespace."""
    permits: dict[Topic, bytes] = field(default_factory=dict)
    """The packed books of permits, by topic."""
    policies: Policies = field(default_factory=dict)
    """Policies of topics, replaced with every change."""
    prefix_policies: Policies = field(default_factory=dict)
    """Policies of prefixes, replaced with every change."""
    groups: Groups = field(default_factory=dict)
    """Consumer groups, replaced with every change."""
    group_copies: dict[tuple[int, str], dict[int, tuple[int, bool]]] = field(default_factory=dict)
    """The copies, and True for a shard that has copied all, by namespace and hidden name, and by shard."""
    access: AccessRows = NO_ACCESS_ROWS
    """Principals and their credentials, replaced with every change."""
    audit: dict[AuditPlace, AuditRecord] = field(default_factory=dict)

    @property
    def epochs(self) -> dict[int, int]:
        """The last epoch of each shard."""
        return self.cluster.epochs

    def named(self, name: str) -> Namespace:
        """Return a namespace. Raises UnknownNamespaceError."""
        namespace = self.namespaces.get(name)
        if namespace is None:
            raise UnknownNamespaceError(f"namespace {name!r} does not exist")
        return namespace

    def copy(self) -> MetaTables:
        return copy.deepcopy(self)


class MetaDatabase:
    """The rows and the sessions of a meta database, and the clock of its server."""

    def __init__(self, now_ms: Callable[[], int], chance: random.Random, tables: MetaTables | None = None) -> None:
        """`chance` draws the ids of censuses."""
        self.now_ms = now_ms
        self.chance = chance
        self.tables = tables or MetaTables()
        self.hosts: dict[str, HostRow] = {}
        self.sessions = FakeSessions(now_ms)
        self.problems: list[str] = []
        """The reasons why its server could lose acknowledged writes."""


Reach = Callable[[], MetaDatabase]
"""Returns the database. Raises UnavailableError while the host does not reach it."""
