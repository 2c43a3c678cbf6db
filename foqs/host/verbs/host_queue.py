"""The verbs of the contract on the shards of this host, without Thrift types."""

from __future__ import annotations

from foqs.host.admission.bulk_lane import BulkLane
from foqs.host.verbs.dequeues import Dequeues
from foqs.host.verbs.job_calls import JobEnqueues
from foqs.host.verbs.settlements import Leases
from foqs.host.verbs.shard_maps import ShardMaps
from foqs.host.verbs.topics import Topics


class Queue:
    """Implements foqs.model.calls.QueueCalls: each verb is a method of the part of the host that does it."""

    def __init__(
        self,
        enqueues: JobEnqueues,
        dequeues: Dequeues,
        leases: Leases,
        topics: Topics,
        shard_maps: ShardMaps,
        lane: BulkLane,
    ) -> None:
        """`lane` is told of the calls that bulk enqueues shall not hold up."""
        self.enqueue = enqueues.enqueue
        self.dequeue = lane.beside(dequeues.dequeue)
        self.ack, self.nack = lane.beside(leases.ack), lane.beside(leases.nack)
        self.extend_lease = lane.beside(leases.extend)
        self.get_active_topics = topics.page
        self.get_shard_map = shard_maps.get
