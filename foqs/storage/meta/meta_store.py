"""The meta database: namespaces, epochs of shards and heartbeats of hosts, shared by all hosts of a cluster.

Each statement of its methods blocks for a bounded time, so call them from a worker thread. Hosts keep serving the
shards they own while the database is unreachable, so no item waits for it.
"""

from __future__ import annotations

from foqs.model import limits
from foqs.storage.meta.meta_access import MetaAccess
from foqs.storage.meta.meta_audit import MetaAudit
from foqs.storage.meta.meta_bulk import MetaBulk
from foqs.storage.meta.meta_censuses import MetaCensuses
from foqs.storage.meta.meta_cluster import MetaCluster
from foqs.storage.meta.meta_gates import MetaGates
from foqs.storage.meta.meta_group_copies import MetaGroupCopies
from foqs.storage.meta.meta_groups import MetaGroups
from foqs.storage.meta.meta_hosts import MetaHosts
from foqs.storage.meta.meta_jobs import MetaJobs
from foqs.storage.meta.meta_namespaces import MetaNamespaces
from foqs.storage.meta.meta_permits import MetaPermits
from foqs.storage.meta.meta_policies import MetaPolicies
from foqs.storage.meta.meta_quotas import MetaQuotas
from foqs.storage.meta.meta_secrets import MetaSecrets
from foqs.storage.meta.meta_sessions import MetaSessions
from foqs.storage.meta.meta_shards import MetaShards
from foqs.storage.meta.meta_slots import MetaSlots
from foqs.storage.sessions.durability import check_durable
from foqs.storage.sessions.session import Session


class MetaStore:
    """The tables of the meta database, each with its own methods, on sessions that they share.

    `MetaSessions` has the rules for all tables: the threads that call them, and the errors that they raise.
    """

    def __init__(self, url: str, statement_ms_max: int = limits.META_STATEMENT_MS_MAX, process_id: str = "") -> None:
        """The arguments are those of `MetaSessions`."""
        self._sessions = sessions = MetaSessions(url, statement_ms_max, process_id)
        self.hosts = MetaHosts(sessions)
        self.cluster = MetaCluster(sessions)
        self.secrets = MetaSecrets(sessions)
        self.shards = MetaShards(sessions)
        self.namespaces = MetaNamespaces(sessions)
        self.censuses = MetaCensuses(sessions)
        self.slots = MetaSlots(sessions)
        self.gates = MetaGates(sessions)
        self.policies = MetaPolicies(sessions)
        self.groups = MetaGroups(sessions)
        self.group_copies = MetaGroupCopies(sessions)
        self.jobs = MetaJobs(sessions)
        self.bulk = MetaBulk(sessions)
        self.quotas = MetaQuotas(sessions)
        self.permits = MetaPermits(sessions)
        self.access = MetaAccess(sessions)
        self.audit = MetaAudit(sessions)

    def use_url(self, url: str) -> None:
        """Open future sessions with this URL, which must lead to the same database. Safe to call from any thread."""
        self._sessions.use_url(url)

    def close(self) -> None:
        """Close the idle sessions; a session in use closes when its call ends."""
        self._sessions.close()

    def check_durable(self) -> list[str]:
        """Return the settings by which the server could lose acknowledged writes; empty if it is durable."""
        with self._sessions.transaction() as connection:
            session = connection.connection.driver_connection
            assert isinstance(session, Session)
            return check_durable(session)
