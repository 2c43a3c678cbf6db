"""The six verbs of the contract on the shards of this host, without Thrift types."""

from __future__ import annotations

from foqs.host.dequeues import Dequeues
from foqs.host.job_calls import JobEnqueues
from foqs.host.leases import Leases
from foqs.host.topics import Topics


class Queue:
    """Implements foqs.model.calls.QueueCalls: each verb is a method of the part of the host that does it."""

    def __init__(self, enqueues: JobEnqueues, dequeues: Dequeues, leases: Leases, topics: Topics) -> None:
        self.enqueue = enqueues.enqueue
        self.dequeue = dequeues.dequeue
        self.ack, self.nack, self.extend_lease = leases.ack, leases.nack, leases.extend
        self.get_active_topics = topics.page
