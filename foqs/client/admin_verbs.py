"""Verbs of service FoqsAdmin: arguments to requests, responses to results, and the repetition of each call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Any

from foqs.client.bulk_jobs import bulk_request, bulk_state
from foqs.client.checks import check_many
from foqs.client.client_errors import error_from_wire
from foqs.client.durations import duration_ms
from foqs.client.flows import Call, Flow, Terms, call_flow
from foqs.client.queue_verbs import id_entries, judged
from foqs.client.retry import Repeat
from foqs.model import limits
from foqs.model.access import AccessGrant
from foqs.model.audit import AuditFilter, AuditPage, AuditRecord
from foqs.model.bulk_work import BulkWork
from foqs.model.calls import (
    ClusterShard,
    DeadLettersResult,
    DeliveryPolicy,
    ExportPage,
    ExportPlan,
    ExportSplit,
    HostStatus,
    Identity,
    ItemFailure,
    ItemState,
    NamespacePage,
    ShardStatus,
    StoredItem,
    StoredItemPage,
)
from foqs.model.cluster import ShardHealth, ShardUse
from foqs.model.cluster_calls import ClusterHost, HostState
from foqs.model.errors import InvalidArgumentError
from foqs.model.jobs import Job, JobPage, JobState
from foqs.model.namespace import SETTING_CHOICES, DedupScope, Namespace, NamespaceSettings
from foqs.wire import codec as wire

Setting = int | bool | float | str | None
"""Value of a setting in a request; None if it is not given."""

_OF_AUDIT = tuple(field.name for field in fields(AuditRecord))
_SETTINGS = tuple(field.name for field in fields(NamespaceSettings))


def settings_of(
    values: Mapping[str, Setting], durations: Mapping[str, tuple[int | None, timedelta | None]]
) -> dict[str, Setting]:
    """Return the settings of a request, with None for omitted ones. A duration is in milliseconds or a timedelta."""
    return {**values, **{name: duration_ms(name, *given) for name, given in durations.items()}}


def create_namespace(terms: Terms, name: str, settings: Mapping[str, Setting]) -> Flow[Namespace]:
    wire_settings = wire.structs.NamespaceSettings(**settings)
    request = wire.structs.CreateNamespaceRequest(name=name, settings=wire_settings)
    return _namespace_call(terms, Call("createNamespace", request, Repeat.UNLESS_UNKNOWN))


def update_namespace(terms: Terms, name: str, settings: Mapping[str, Setting]) -> Flow[Namespace]:
    wire_settings = wire.structs.NamespaceSettings(**settings)
    request = wire.structs.UpdateNamespaceRequest(name=name, settings=wire_settings)
    return _namespace_call(terms, Call("updateNamespace", request, Repeat.ALWAYS))


def get_namespace(terms: Terms, name: str) -> Flow[Namespace]:
    request = wire.structs.GetNamespaceRequest(name=name)
    return _namespace_call(terms, Call("getNamespace", request, Repeat.READ))


def namespace_page(terms: Terms, prefix: str, page_token: str) -> Flow[NamespacePage]:
    request = wire.structs.ListNamespacesRequest(prefix=prefix, limit=limits.PAGE_ITEMS_MAX, page_token=page_token)
    response = yield from call_flow(terms, Call("listNamespaces", request, Repeat.READ))
    return NamespacePage([_namespace(n) for n in response.namespaces or ()], response.next_page_token or "")


def delete_namespace(terms: Terms, name: str) -> Flow[None]:
    request = wire.structs.DeleteNamespaceRequest(name=name)
    yield from call_flow(terms, Call("deleteNamespace", request, Repeat.UNLESS_UNKNOWN))


def recover_namespace(
    terms: Terms, number: int, name: str | None, key_spread: int | None, dedup_scope: DedupScope | None
) -> Flow[Namespace]:
    settings = wire.structs.NamespaceSettings(key_spread=key_spread, dedup_scope=dedup_scope)
    request = wire.structs.RecoverNamespaceRequest(number=number, name=name, settings=settings)
    return _namespace_call(terms, Call("recoverNamespace", request, Repeat.UNLESS_UNKNOWN))


def peek_items(
    terms: Terms,
    namespace: str,
    topic: str,
    limit: int,
    page_token: str,
    group: str | None = None,
    ordering_key: str | None = None,
    fairness_key: str | None = None,
) -> Flow[StoredItemPage]:
    request = wire.structs.PeekItemsRequest(
        namespace_name=namespace,
        topic=topic,
        limit=limit,
        page_token=page_token,
        group=group,
        ordering_key=ordering_key,
        fairness_key=fairness_key,
    )
    return _stored_items_call(terms, Call("peekItems", request, Repeat.READ))


def list_dead_letters(
    terms: Terms,
    namespace: str,
    topic: str,
    limit: int,
    page_token: str,
    group: str | None = None,
    ordering_key: str | None = None,
    fairness_key: str | None = None,
) -> Flow[StoredItemPage]:
    request = wire.structs.ListDeadLettersRequest(
        namespace_name=namespace,
        topic=topic,
        limit=limit,
        page_token=page_token,
        group=group,
        ordering_key=ordering_key,
        fairness_key=fairness_key,
    )
    return _stored_items_call(terms, Call("listDeadLetters", request, Repeat.READ))


def get_item(terms: Terms, namespace: str, item_id: str) -> Flow[StoredItem]:
    request = wire.structs.GetItemRequest(namespace_name=namespace, id=item_id)
    return _stored_item((yield from call_flow(terms, Call("getItem", request, Repeat.READ))))


def plan_export(terms: Terms, namespace: str, splits_per_shard: int, partial: bool = False) -> Flow[ExportPlan]:
    request = wire.structs.PlanExportRequest(
        namespace_name=namespace, splits_per_shard=splits_per_shard, partial=partial or None
    )
    response = yield from call_flow(terms, Call("planExport", request, Repeat.READ, is_long=True))
    splits = [ExportSplit(w.shard_id, w.from_key, w.to_key, w.items_estimate or 0) for w in response.splits or ()]
    return ExportPlan(splits, response.as_of_ms, list(response.missing or ()))


def export_items(
    terms: Terms,
    namespace: str,
    split: ExportSplit,
    after_key: int,
    limit: int,
    topics: str | Iterable[str],
    topic_prefix: str,
    states: Iterable[ItemState],
    with_payload: bool,
    with_metadata: bool,
) -> Flow[ExportPage]:
    if not isinstance(split, ExportSplit):
        raise InvalidArgumentError(f"split is {type(split).__name__}: give one of the splits of plan_export")
    request = wire.structs.ExportItemsRequest(
        namespace_name=namespace,
        split=wire.structs.ExportSplit(split.shard_id, split.from_key, split.to_key, split.items_estimate),
        after_key=after_key,
        limit=limit,
        topics=topic_list(topics),
        states=state_list(states),
        with_payload=with_payload,
        with_metadata=with_metadata,
        topic_prefix=topic_prefix or None,
    )
    response = yield from call_flow(terms, Call("exportItems", request, Repeat.READ, is_long=True))
    return ExportPage([_stored_item(w) for w in response.items or ()], response.next_after_key or 0)


def topic_list(topics: str | Iterable[str]) -> list[str]:
    """Return the topics of an export as a list. Raises InvalidArgumentError for a value that is not iterable."""
    if isinstance(topics, str):
        return [topics]
    check_many("topics", topics, "topics")
    return list(topics)


def state_list(states: Iterable[ItemState]) -> list[ItemState]:
    """Return the states of an export as a list. Raises InvalidArgumentError for a value that is not iterable."""
    check_many("states", states, "ItemStates")
    return list(states)


def change_dead_letters(
    terms: Terms,
    method: str,
    namespace: str,
    topic: str,
    ids: Iterable[str] | None,
    limit: int,
    page_token: str,
    return_errors: bool = False,
    group: str | None = None,
    ordering_key: str | None = None,
    fairness_key: str | None = None,
) -> Flow[DeadLettersResult]:
    """Redrive or purge dead letters, by `method`. Raises BatchError for other ids, unless errors are returned."""
    entries, faults = (None, {}) if ids is None else id_entries(ids)
    places = [place for place in range(len(entries or ())) if place not in faults]
    if faults and not places:
        if not return_errors:
            raise faults[0]
        return DeadLettersResult(0, faults)  # A request without ids would mean all dead letters.
    sent = None if entries is None else [entries[place] for place in places]
    request = wire.METHODS[method].request(
        namespace_name=namespace,
        topic=topic,
        ids=sent,
        limit=limit,
        page_token=page_token or None,
        group=group,
        ordering_key=ordering_key,
        fairness_key=fairness_key,
    )
    response = yield from call_flow(terms, Call(method, request, Repeat.UNLESS_UNKNOWN))
    chosen = response.ids or []
    decoded = {at: error_from_wire(error) for at, error in (response.errors or {}).items()}
    errors = decoded if entries is None else faults | {places[at]: error for at, error in decoded.items()}
    judged(method, errors, len(entries or chosen), False, return_errors)
    return DeadLettersResult(response.count or 0, errors, chosen, response.next_page_token or "")


def create_job(terms: Terms, namespace: str, job_id: str, items_per_second_max: int, detail: str) -> Flow[Job]:
    request = wire.structs.CreateJobRequest(
        namespace_name=namespace, id=job_id, items_per_second_max=items_per_second_max, detail=detail
    )
    return _job_call(terms, Call("createJob", request, Repeat.UNLESS_UNKNOWN))


def update_job(
    terms: Terms,
    namespace: str,
    job_id: str,
    state: JobState | None,
    items_per_second_max: int | None,
    rows_count: int | None,
    detail: str | None,
) -> Flow[Job]:
    request = wire.structs.UpdateJobRequest(
        namespace_name=namespace,
        id=job_id,
        state=state,
        items_per_second_max=items_per_second_max,
        rows_count=rows_count,
        detail=detail,
    )
    return _job_call(terms, Call("updateJob", request, Repeat.ALWAYS))


def create_bulk_job(
    terms: Terms,
    namespace: str,
    job_id: str,
    work: BulkWork,
    items_per_second_max: int,
    detail: str,
    *,
    all_items: bool = False,
) -> Flow[Job]:
    request = bulk_request(namespace, job_id, work, items_per_second_max, detail, all_items=all_items)
    return _job_call(terms, Call("createBulkJob", request, Repeat.ALWAYS))


def get_job(terms: Terms, namespace: str, job_id: str) -> Flow[Job]:
    request = wire.structs.GetJobRequest(namespace_name=namespace, id=job_id)
    return _job_call(terms, Call("getJob", request, Repeat.READ))


def job_page(terms: Terms, namespace: str, limit: int, page_token: str) -> Flow[JobPage]:
    request = wire.structs.ListJobsRequest(namespace_name=namespace, limit=limit, page_token=page_token)
    response = yield from call_flow(terms, Call("listJobs", request, Repeat.READ))
    return JobPage([_job(decoded) for decoded in response.jobs or ()], response.next_page_token or "")


def list_shards(terms: Terms) -> Flow[list[ClusterShard]]:
    response = yield from call_flow(terms, Call("listShards", wire.structs.ListShardsRequest(), Repeat.READ))
    return [_shard(decoded) for decoded in response.shards or ()]


def add_shard(terms: Terms, shard_id: int, place: str, tier: str) -> Flow[ClusterShard]:
    request = wire.structs.AddShardRequest(shard_id=shard_id, place=place, tier=tier)
    return _shard((yield from call_flow(terms, Call("addShard", request, Repeat.UNLESS_UNKNOWN))))


def update_shard(
    terms: Terms,
    shard_id: int,
    state: ShardUse | None,
    pinned_to: str | None,
    tier: str | None,
    last: bool,
    place: str | None,
    allow_older: bool,
) -> Flow[ClusterShard]:
    request = wire.structs.UpdateShardRequest(
        shard_id=shard_id,
        state=state,
        pinned_to=pinned_to,
        tier=tier,
        last=last or None,
        place=place,
        allow_older=allow_older or None,
    )
    return _shard((yield from call_flow(terms, Call("updateShard", request, Repeat.ALWAYS))))


def remove_shard(terms: Terms, shard_id: int) -> Flow[None]:
    request = wire.structs.RemoveShardRequest(shard_id=shard_id)
    yield from call_flow(terms, Call("removeShard", request, Repeat.UNLESS_UNKNOWN))


def ungate_slot(terms: Terms, slot: int, force: bool) -> Flow[None]:
    request = wire.structs.UngateSlotRequest(slot=slot, force=force or None)
    yield from call_flow(terms, Call("ungateSlot", request, Repeat.UNLESS_UNKNOWN))


def list_hosts(terms: Terms) -> Flow[list[ClusterHost]]:
    response = yield from call_flow(terms, Call("listHosts", wire.structs.ListHostsRequest(), Repeat.ALWAYS))
    return [_host(decoded) for decoded in response.hosts or ()]


def host_status(terms: Terms) -> Flow[HostStatus]:
    call = Call("getHostStatus", wire.structs.HostStatusRequest(), Repeat.READ)
    response = yield from call_flow(terms, call)
    shards = [
        ShardStatus(s.shard_id, s.state, s.epoch, s.items, s.open_leases, s.detail or "") for s in response.shards or ()
    ]
    is_draining, peer_address = bool(response.draining), response.peer_address or ""
    return HostStatus(response.host, response.version, response.started_at_ms, shards, is_draining, peer_address)


def who_am_i(terms: Terms) -> Flow[Identity]:
    decoded = yield from call_flow(terms, Call("whoAmI", wire.structs.WhoAmIRequest(), Repeat.READ))
    grants = [AccessGrant(grant.namespaces, tuple(grant.roles or ())) for grant in decoded.grants or ()]
    return Identity(decoded.principal, decoded.expires_at_ms, grants)


def audit_page(
    terms: Terms, since_ms: int | None, until_ms: int | None, wanted: AuditFilter, limit: int, page_token: str
) -> Flow[AuditPage]:
    request = wire.structs.ListAuditRequest(
        since_ms, until_ms, wanted.principal, wanted.namespace_name, wanted.verb, limit, page_token
    )
    response = yield from call_flow(terms, Call("listAudit", request, Repeat.READ))
    records = [
        AuditRecord(**{name: getattr(decoded, name) for name in _OF_AUDIT}) for decoded in response.records or ()
    ]
    return AuditPage(records, response.next_page_token or "")


def _shard(w: Any) -> ClusterShard:
    values = {field.name: getattr(w, field.name) for field in fields(ClusterShard)}
    # An older host does not send these, and a newer one can send an unknown health.
    values |= {"slots_count": w.slots_count or 0, "kept_by": w.kept_by or "", "last_owner": w.last_owner or ""}
    values |= {"health": ShardHealth(w.health if w.health in frozenset(ShardHealth) else 0), "detail": w.detail or ""}
    return ClusterShard(**values | {"state": ShardUse(w.state)})


def _host(w: Any) -> ClusterHost:
    values = {field.name: getattr(w, field.name) for field in fields(ClusterHost)}
    # A newer host can send an unknown state.
    values["state"] = HostState(w.state if w.state in frozenset(HostState) else 0)
    values |= {"shards": w.shards or [], "sick_shards": w.sick_shards or [], "detail": w.detail or ""}
    values["peer_address"] = w.peer_address or ""
    return ClusterHost(**values)


def _namespace_call(terms: Terms, call: Call) -> Flow[Namespace]:
    return _namespace((yield from call_flow(terms, call)))


def _job_call(terms: Terms, call: Call) -> Flow[Job]:
    return _job((yield from call_flow(terms, call)))


def _job(w: Any) -> Job:
    values = {field.name: value for field in fields(Job) if (value := getattr(w, field.name)) is not None}
    # A newer host can send an unknown state, which also means that the job has ended.
    values["state"] = JobState(w.state) if w.state in frozenset(JobState) else JobState.FAILED
    if w.bulk is not None:
        values["bulk"] = bulk_state(w.bulk)
    return Job(**values)


def _stored_items_call(terms: Terms, call: Call) -> Flow[StoredItemPage]:
    response = yield from call_flow(terms, call)
    return StoredItemPage([_stored_item(w) for w in response.items or ()], response.next_page_token or "")


def _namespace(w: Any) -> Namespace:
    """Return the namespace for the caller. Its number is internal to hosts, is not sent, and is 0 here."""
    given = {name: value for name in _SETTINGS if (value := getattr(w.settings, name, None)) is not None}
    given |= {name: kind(given[name]) for name, kind in SETTING_CHOICES.items() if name in given}
    return Namespace(0, w.name, NamespaceSettings(**given), w.created_at_ms, bool(w.closing))


def _stored_item(w: Any) -> StoredItem:
    values = {field.name: getattr(w, field.name) for field in fields(StoredItem)}
    values |= {"state": ItemState(w.state), "delivery": DeliveryPolicy(w.delivery or 0), "metadata": w.metadata or b""}
    values["errors"] = [ItemFailure(f.at_ms or 0, f.attempt or 0, f.reason or "") for f in w.errors or ()]
    return StoredItem(**values)
