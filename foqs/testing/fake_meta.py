"""A meta database in memory as one host reaches it: foqs.storage.meta.meta_store on dictionaries."""

from __future__ import annotations

import random
from collections.abc import Callable

from foqs.testing.fake_access import FakeAccess
from foqs.testing.fake_audit import FakeAudit
from foqs.testing.fake_bulk import FakeBulk
from foqs.testing.fake_censuses import FakeCensuses, FakeSlots
from foqs.testing.fake_cluster import FakeCluster, FakeHosts, FakeSecrets, FakeShards
from foqs.testing.fake_gates import FakeGates
from foqs.testing.fake_groups import FakeGroups
from foqs.testing.fake_jobs import FakeJobs
from foqs.testing.fake_meta_tables import MetaDatabase, Reach
from foqs.testing.fake_namespaces import FakeNamespaces
from foqs.testing.fake_permits import FakePermits
from foqs.testing.fake_policies import FakePolicies
from foqs.testing.fake_quotas import FakeQuotas


class FakeMeta:
    """The tables, by the names of `MetaStore`. Tests can replace one by another of their own."""

    def __init__(self, reach: Reach, process_id: str = "") -> None:
        """`process_id` is that of the host."""
        self.reach = reach
        self.hosts = FakeHosts(reach)
        self.cluster = FakeCluster(reach)
        self.secrets = FakeSecrets(reach)
        self.shards = FakeShards(reach)
        self.censuses = FakeCensuses(reach)
        self.slots = FakeSlots(reach, self.censuses)
        self.gates = FakeGates(reach)
        self.policies = FakePolicies(reach, self.censuses)
        self.jobs = FakeJobs(reach)
        self.bulk = FakeBulk(reach, self.jobs)
        self.access = FakeAccess(reach)
        self.groups = self.group_copies = FakeGroups(reach, self.censuses, self.jobs)
        self.namespaces = FakeNamespaces(
            reach, self.censuses, self.slots, self.jobs, self.policies, self.groups, self.access
        )
        self.quotas = FakeQuotas(reach, process_id)
        self.permits = FakePermits(reach)
        self.audit = FakeAudit(reach)

    def check_durable(self) -> list[str]:
        return list(self.reach().problems)

    def close(self) -> None:
        return None


def memory_meta(now_ms: Callable[[], int]) -> FakeMeta:
    """Return a new meta database as its only host reaches it, which is always."""
    database = MetaDatabase(now_ms, random.Random(0))
    return FakeMeta(lambda: database)
