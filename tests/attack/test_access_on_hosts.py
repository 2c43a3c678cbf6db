"""Identities and permissions on real hosts: what one is told holds on all, and nothing leads into another tenant."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs import AccessGrant, AccessMode
from foqs.client.queue_items import NewItem
from foqs.host.registry import meta_calls
from foqs.model import limits
from foqs.model.errors import ErrorCode, InvalidArgumentError
from foqs.model.host_addresses import is_loopback
from foqs.model.principal import EVERYBODY, NOBODY
from foqs.storage.meta.meta_jobs import MetaJobs
from foqs.wire.codec import Reply, structs
from tests.support.raw_client import RawClient
from tests.support.running_host import RunningHost, running_host
from tests.support.sign_in_world import log_in, who
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.database, pytest.mark.deep]
DENIED = ErrorCode.PERMISSION_DENIED


@asynccontextmanager
async def caller(host: RunningHost, token: str) -> AsyncIterator[RawClient]:
    async with RawClient.connect("127.0.0.1", host.host.port) as client:
        assert (await log_in(client, token)).error is None
        yield client


async def token_of(host: RunningHost, name: str, grants: dict[str, str]) -> Any:
    """Make the principal, and return its new token."""
    await host.admin.create_principal(name, [AccessGrant(at, tuple(roles.split())) for at, roles in grants.items()])
    return await host.admin.create_token(name)


async def test_enforced_access_and_a_revocation_hold_on_all_hosts(meta_url: str, shard_urls: dict[int, str]) -> None:
    async with (
        running_host(meta_url, shard_urls, name="a") as one,
        running_host(meta_url, {}, name="b") as other,
    ):
        root = await token_of(one, "root", {"*": "admin owner"})
        mailer = await token_of(one, "mailer", {"jobs": "worker"})
        assert (await who(other.raw)).principal == "everybody"
        await one.admin.set_access_mode(AccessMode.ENFORCED)
        began_s = time.monotonic()
        dequeue = structs.DequeueRequest("jobs", [structs.TopicDemand("t", 1)], None, 0)
        for host in (one, other):
            while (await host.raw.call("dequeue", dequeue)).error is None:
                assert time.monotonic() - began_s < 20
        async with caller(other, mailer.token) as client, caller(one, root.token) as admin:
            item = structs.NewItem("t", b"x" * 10_000)
            assert (await client.call("enqueue", structs.EnqueueRequest("jobs", [item]))).error is None
            assert (await client.call("listHosts", structs.ListHostsRequest())).error.code is DENIED
            client.send("dequeue", structs.DequeueRequest("jobs", [structs.TopicDemand("none", 1)], None, 30_000), 5)
            revoked = await admin.call("revokeToken", structs.RevokeTokenRequest(mailer.info.id))
            assert revoked.error is None
            ended = await client.receive()
            assert (ended.seqid, ended.error.code) == (5, DENIED)
            assert await client.is_closed()
            assert (await admin.call("setAccessMode", structs.SetAccessModeRequest(0))).error is None


async def test_a_host_that_starts_does_not_serve_anybody_before_it_knows_that_access_is_enforced(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    """And it reaches the shards of the others, which it proves to be a host, and not by a credential."""
    async with running_host(meta_url, shard_urls, name="a") as one:
        await token_of(one, "root", {"*": "admin"})
        mailer = await token_of(one, "mailer", {"jobs": "worker"})
        await one.admin.set_access_mode(AccessMode.ENFORCED)
        async with running_host(meta_url, {}, name="b", namespace=None) as again:
            assert (await who(again.raw)).principal == "nobody"
            assert (await again.raw.call("getHostStatus", structs.HostStatusRequest())).error.code is DENIED
            async with caller(again, mailer.token) as client:
                request = structs.EnqueueRequest("jobs", [structs.NewItem("t", b"x" * 10_000)])

                async def enqueued() -> bool:
                    return (await client.call("enqueue", request)).error is None

                assert await eventually(enqueued, bool)
        assert one.items_stored() == 1


async def test_ids_receipts_splits_and_jobs_of_another_namespace_lead_nowhere(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    s = structs
    async with running_host(meta_url, shard_urls) as host:
        await host.admin.create_namespace("mail")
        found = await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 2)
        item_id, leased_id = found.ids
        (item,) = await host.leased(1)
        split = (await host.call("planExport", s.PlanExportRequest("jobs"))).response.splits[0]
        job = (await host.call("createJob", s.CreateJobRequest("jobs", "night"))).response
        assert job.id == "night"
        root = await token_of(host, "root", {"*": "admin"})
        mailer = await token_of(host, "mailer", {"mail": "owner"})
        assert root
        await host.admin.set_access_mode(AccessMode.ENFORCED)
        async with caller(host, mailer.token) as client:
            batches = [
                await client.call("ack", s.AckRequest("mail", [item.receipt])),
                await client.call("nack", s.NackRequest("mail", [s.Nack(item.receipt)])),
                await client.call("extendLease", s.ExtendRequest("mail", [item.receipt], 1_000)),
                await client.call("deleteItems", s.DeleteItemsRequest("mail", [item_id, leased_id])),
                await client.call("redriveDeadLetters", s.RedriveDeadLettersRequest("mail", "t", [item_id])),
                await client.call("purgeDeadLetters", s.PurgeDeadLettersRequest("mail", "t", [item_id])),
            ]
            for reply in batches:
                assert {error.code for error in reply.response.errors.values()} <= {
                    ErrorCode.STALE_LEASE, ErrorCode.NOT_FOUND,
                }, reply  # fmt: skip
                assert len(reply.response.errors) > 0
            assert (await client.call("getItem", s.GetItemRequest("mail", item_id))).error.code is ErrorCode.NOT_FOUND
            assert (await client.call("getJob", s.GetJobRequest("mail", "night"))).error.code is ErrorCode.NOT_FOUND
            exported = await client.call("exportItems", s.ExportItemsRequest("mail", split, 0, 100))
            assert list(exported.response.items) == []
            for token in (item_id, "9", "0-0"):
                peeked: Reply = await client.call("peekItems", s.PeekItemsRequest("mail", "t", 100, token))
                assert peeked.error is not None or list(peeked.response.items) == []
            for verb, request in (
                ("getItem", s.GetItemRequest("jobs", item_id)),
                ("ack", s.AckRequest("jobs", [item.receipt])),
                ("exportItems", s.ExportItemsRequest("jobs", split, 0, 100)),
            ):
                assert (await client.call(verb, request)).error.code is DENIED
            listed = await client.call("listNamespaces", s.ListNamespacesRequest())
            assert [one.name for one in listed.response.namespaces] == ["mail"]
    async with running_host(meta_url, shard_urls, name="later", namespace=None) as later:
        assert later.items_stored() == 2, "nothing was changed by it"


async def test_no_principal_has_the_name_of_callers_without_a_credential(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    """Else the audit would lay what strangers did at its door, or hide among theirs what it did."""
    async with running_host(meta_url, shard_urls) as host:
        for name in (NOBODY.name, EVERYBODY.name):
            with pytest.raises(InvalidArgumentError, match="stands for callers without a credential"):
                await host.admin.create_principal(name, [AccessGrant("*", ("owner",))])
        assert not [one async for one in host.admin.list_principals()]
        await host.admin.create_principal("nobody-else", [])


async def test_a_host_that_other_machines_reach_starts_only_if_access_is_enforced_or_open_access_is_allowed(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    everywhere = {"listen_address": "0.0.0.0", "advertise_address": "127.0.0.1"}
    with pytest.raises(InvalidArgumentError, match="access is open: everybody who reaches the port"):
        async with running_host(meta_url, shard_urls, name="a", **everywhere):
            pass
    with capture_logs() as logs:
        async with running_host(meta_url, shard_urls, name="a", allow_open=True, **everywhere) as host:
            assert [log["mode"] for log in logs if log["event"] == "open_to_the_network"] == ["open"]
            root = await token_of(host, "root", {"*": "admin owner"})
            await host.admin.set_access_mode(AccessMode.PERMISSIVE)
    with pytest.raises(InvalidArgumentError, match="access is permissive"):
        async with running_host(meta_url, shard_urls, name="a", **everywhere):
            pass
    async with running_host(meta_url, shard_urls, name="b") as host, caller(host, root.token) as admin:
        enforce = structs.SetAccessModeRequest(AccessMode.ENFORCED)
        assert (await admin.call("setAccessMode", enforce)).error is None
        with capture_logs() as logs:
            async with running_host(meta_url, {}, name="a", namespace=None, **everywhere):
                assert not [log for log in logs if log["event"] == "open_to_the_network"]


async def test_metrics_are_for_other_machines_only_with_a_token_or_if_that_is_allowed_once_access_is_enforced(
    meta_url: str, shard_urls: dict[int, str], tmp_path: Path
) -> None:
    everywhere = {"metrics_address": "0.0.0.0", "metrics_port": 9}
    async with running_host(meta_url, shard_urls, name="a", **everywhere) as host:
        root = await token_of(host, "root", {"*": "admin owner"})
        async with caller(host, root.token) as admin:
            enforce = structs.SetAccessModeRequest(AccessMode.ENFORCED)
            assert (await admin.call("setAccessMode", enforce)).error is None
    with pytest.raises(InvalidArgumentError, match=r"metrics_address = 0\.0\.0\.0 can .* Set metrics_token_file to"):
        async with running_host(meta_url, shard_urls, name="a", namespace=None, **everywhere):
            pass
    held: list[dict[str, Any]] = [
        {"metrics_token_file": str(tmp_path / "token")}, {"metrics_address": "127.0.0.1"}, {"metrics_port": 0},
        {"metrics_open": True},
    ]  # fmt: skip
    for more in held:
        with capture_logs() as logs:
            async with running_host(meta_url, shard_urls, name="a", namespace=None, **(everywhere | more)):
                warned = [log["metrics_address"] for log in logs if log["event"] == "metrics_open_to_the_network"]
        assert warned == (["0.0.0.0"] if "metrics_open" in more else [])


@pytest.mark.parametrize(
    ("address", "is_of_this_machine"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("queue-a", False), ("localhost.example", False),
        ("0", False), ("127.0.0.1.example", False), ("::ffff:10.0.0.1", False),
    ],
)  # fmt: skip
def test_only_addresses_of_the_machine_itself_are_taken_for_its_own(address: str, *, is_of_this_machine: bool) -> None:
    assert is_loopback(address) is is_of_this_machine


async def test_a_tenant_that_asks_without_end_does_not_keep_its_token_from_being_revoked(
    meta_url: str, shard_urls: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All calls on the meta database had 18 places together, which one caller with any token could take."""
    gate = threading.Event()
    pages = MetaJobs.page

    def stands_still(self: MetaJobs, *arguments: Any) -> Any:
        assert gate.wait(PATIENCE_S)
        return pages(self, *arguments)

    monkeypatch.setattr(MetaJobs, "page", stands_still)
    async with running_host(meta_url, {0: shard_urls[0]}) as host:
        root, tenant = await token_of(host, "root", {"*": "admin"}), await token_of(host, "tenant", {"jobs": "viewer"})
        await host.admin.set_access_mode(AccessMode.ENFORCED)
        async with caller(host, root.token) as admin, caller(host, tenant.token) as client:
            try:
                for seqid in range(meta_calls.META_CALL_THREADS + limits.META_CALLS_WAITING_MAX + 1):
                    client.send("listJobs", structs.ListJobsRequest("jobs"), seqid)
                refused = await client.receive()
                assert refused.error.code is ErrorCode.OVERLOADED, "all places are taken"
                for verb, request in (
                    ("getAccess", structs.GetAccessRequest()), ("listAudit", structs.ListAuditRequest()),
                    ("revokeToken", structs.RevokeTokenRequest(tenant.info.id)),
                    ("setAccessMode", structs.SetAccessModeRequest(AccessMode.OPEN)),
                ):  # fmt: skip
                    assert (await admin.call(verb, request)).error is None, verb
            finally:
                gate.set()
