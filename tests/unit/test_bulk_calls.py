"""The texts of a filter are those of items: callers without READ see a job without them."""

from __future__ import annotations

import pytest

from foqs.contract.permissions import Permission
from foqs.host.verbs.bulk_calls import shown_job
from foqs.model.bulk_work import BulkState, BulkWork
from foqs.model.calls import CallContext
from foqs.model.item_filter import ItemFilter
from foqs.model.jobs import Job
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.model.principal import Principal

JOBS = Namespace(1, "jobs", NamespaceSettings(), 0)
PLAIN = ItemFilter(topics=("t",), attempts_min=2)
SECRET = {"error_contains": "card 4711", "metadata_contains": b"ann", "payload_contains": b"pin"}


def job(chosen: ItemFilter) -> Job:
    state = BulkState(work=BulkWork(filter=chosen), matched=3)
    return Job(id="bulk-" + "0" * 20, namespace_name="jobs", created_at_ms=1, updated_at_ms=1, bulk=state)


def context(bits: Permission, namespace: str = "jobs", *, is_permissive: bool = False) -> CallContext:
    return CallContext("a", principal=Principal("ann", names={namespace: int(bits)}), is_permissive=is_permissive)


@pytest.mark.parametrize("name", SECRET)
def test_a_text_of_a_filter_is_shown_to_those_who_can_read_items(name: str) -> None:
    made = job(ItemFilter(topics=("t",), attempts_min=2, **{name: SECRET[name]}))
    reads, sees = Permission.OBSERVE | Permission.READ, Permission.OBSERVE | Permission.ALTER
    for allowed in (context(reads), context(Permission(0), is_permissive=True)):
        assert shown_job(allowed, JOBS, made) is made
    for other in (context(sees), context(reads, "other")):
        found = shown_job(other, JOBS, made).bulk
        assert found == BulkState(work=BulkWork(filter=PLAIN), matched=3, hides_texts=True)
        assert str(SECRET[name]) not in str(found)


def test_a_filter_without_texts_and_other_jobs_are_shown_as_they_are() -> None:
    who = context(Permission.OBSERVE)
    made = job(PLAIN)
    assert shown_job(who, JOBS, made) == made
    plain = Job(id="load", namespace_name="jobs", created_at_ms=1, updated_at_ms=1)
    assert shown_job(who, JOBS, plain) is plain
