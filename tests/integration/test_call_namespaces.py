"""Namespaces and the host's status over a socket: settings, their bounds, and that they take effect."""

from __future__ import annotations

import time
from dataclasses import fields

import pytest

from foqs.client.queue_items import Nack, NewItem
from foqs.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    TooLargeError,
    UnknownNamespaceError,
)
from foqs.model.namespace import (
    SETTING_BOUNDS,
    SETTING_CHOICES,
    SETTINGS_OF_CREATION,
    DedupScope,
    DedupWhenAway,
    NamespaceSettings,
)
from foqs.wire.codec import structs
from tests.histories.stored import item_rows
from tests.support.running_host import running_host

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLOCK_SLACK_MS = 1_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def names(host, prefix: str = "") -> list[str]:
    return [namespace.name async for namespace in host.admin.list_namespaces(prefix)]


async def test_a_new_namespace_has_the_given_settings_and_defaults_for_the_rest(host):
    before = now_ms()
    created = await host.admin.create_namespace("A-z_0.9", attempts_max=3, lease_ms_default=5_000)
    assert created.name == "A-z_0.9"
    assert created.settings == NamespaceSettings(attempts_max=3, lease_ms_default=5_000)
    assert before - CLOCK_SLACK_MS <= created.created_at_ms <= now_ms() + CLOCK_SLACK_MS
    assert await host.admin.get_namespace("A-z_0.9") == created
    assert (await host.admin.create_namespace("bare")).settings == NamespaceSettings()


async def test_an_update_changes_what_it_names_and_nothing_else(host):
    created = await host.admin.create_namespace("n", attempts_max=3)
    updated = await host.admin.update_namespace("n", payload_bytes_max=1, enqueue_paused=True)
    assert updated.settings == NamespaceSettings(attempts_max=3, payload_bytes_max=1, enqueue_paused=True)
    assert updated.created_at_ms == created.created_at_ms
    assert await host.admin.get_namespace("n") == updated
    unpaused = await host.admin.update_namespace("n", enqueue_paused=False)
    assert unpaused.settings == NamespaceSettings(attempts_max=3, payload_bytes_max=1)
    assert (await host.admin.update_namespace("n")).settings == unpaused.settings


async def test_names_differ_by_case_and_a_second_one_exists_already(host):
    for name in ("x" * 64, "Jobs", "JOBS"):
        await host.admin.create_namespace(name)
    with pytest.raises(AlreadyExistsError):
        await host.admin.create_namespace("Jobs", attempts_max=1)
    assert (await host.admin.get_namespace("Jobs")).settings == NamespaceSettings()
    assert await names(host) == sorted(["jobs", "Jobs", "JOBS", "x" * 64])


async def test_each_setting_takes_its_bounds_and_refuses_one_beyond(host):
    # A maximum stays above its default.
    partners = {"lease_ms_max": "lease_ms_default", "ttl_ms_max": "ttl_ms_default"}
    for setting, (low, high) in SETTING_BOUNDS.items():
        if setting in SETTINGS_OF_CREATION:
            continue
        for value in (high, low):
            settings = {setting: value}
            if setting in partners:
                settings[partners[setting]] = low
            updated = await host.admin.update_namespace("jobs", **settings)
            assert getattr(updated.settings, setting) == value
        for value in (low - 1, high + 1):
            with pytest.raises(InvalidArgumentError, match=setting):
                await host.admin.update_namespace("jobs", **{setting: value})
            with pytest.raises(InvalidArgumentError, match=setting):
                await host.admin.create_namespace("bad", **{setting: value})
        assert await host.admin.get_namespace("jobs") == updated
    assert await names(host) == ["jobs"]


async def test_the_key_spread_is_a_power_of_two_and_stays_as_it_was_created(host):
    for spread in (1, 2, 64):
        created = await host.admin.create_namespace(f"spread-{spread}", key_spread=spread)
        assert created.settings.key_spread == spread
    for spread in (0, 3, 65, 128, -2):
        with pytest.raises(InvalidArgumentError, match="key_spread"):
            await host.admin.create_namespace("bad", key_spread=spread)
    with pytest.raises(InvalidArgumentError, match=r"key_spread is 2 since .* cannot become 4, .*: create another"):
        await host.admin.update_namespace("spread-2", key_spread=4, attempts_max=3)
    same = await host.admin.update_namespace("spread-2", key_spread=2, attempts_max=4)
    assert (same.settings.key_spread, same.settings.attempts_max) == (2, 4)
    with pytest.raises(InvalidArgumentError, match=r"dedup_scope is NAMESPACE since .* cannot become TOPIC,"):
        await host.admin.update_namespace("spread-2", dedup_scope=DedupScope.TOPIC)
    assert (await host.admin.get_namespace("spread-2")) == same


async def test_a_setting_that_is_a_choice_refuses_what_is_none_of_them(host):
    for setting in SETTING_CHOICES:
        with pytest.raises(InvalidArgumentError, match=rf"{setting} 2 is none of 0 \("):
            await host.admin.create_namespace("bad", **{setting: 2})
    updated = await host.admin.update_namespace("jobs", dedup_when_away=DedupWhenAway.ACCEPT)
    assert updated.settings.dedup_when_away is DedupWhenAway.ACCEPT


async def test_a_default_over_its_maximum_is_refused_whole(host):
    for settings in (
        {"lease_ms_default": 10_000, "lease_ms_max": 9_999},
        {"lease_ms_max": 2_000},
        {"ttl_ms_default": 2, "ttl_ms_max": 1},
        {"ttl_ms_max": 1, "attempts_max": 5},
        {"tier": "a b"},
        {"tier": "g" * 65},
    ):
        with pytest.raises(InvalidArgumentError):
            await host.admin.update_namespace("jobs", **settings)
    assert (await host.admin.get_namespace("jobs")).settings == NamespaceSettings()


async def test_every_setting_travels(host):
    values = {name: bounds[0] + 1 for name, bounds in SETTING_BOUNDS.items()}
    values |= {"ttl_ms_max": 50, "enqueue_paused": True, "dequeue_paused": True}
    values |= {"dedup_scope": DedupScope.TOPIC, "dedup_when_away": DedupWhenAway.ACCEPT}
    values |= {"deliveries_per_second_max": 2.5, "pause_reason": "a deployment", "tier": "gold"}
    values["dead_letter_on_expiry"] = True
    assert set(values) == {field.name for field in fields(NamespaceSettings)}
    created = await host.admin.create_namespace("all", **values)
    assert created.settings == NamespaceSettings(**values)
    assert await host.admin.get_namespace("all") == created


async def test_namespaces_are_listed_by_name_in_pages_and_by_prefix(host):
    for n in range(7):
        await host.admin.create_namespace(f"team-{n}")
    expected = ["jobs", *[f"team-{n}" for n in range(7)]]
    assert await names(host) == expected
    assert await names(host, "team-") == expected[1:]
    assert await names(host, "TEAM") == []
    for limit in (1, 3, 8, 1_000):
        seen, token = [], ""
        while True:
            reply = await host.call("listNamespaces", structs.ListNamespacesRequest("", limit, token))
            page = [namespace.name for namespace in reply.response.namespaces]
            assert len(page) <= limit
            seen += page
            token = reply.response.next_page_token
            if not token:
                break
        assert seen == expected
    for limit in (0, -1, 1_001):
        reply = await host.call("listNamespaces", structs.ListNamespacesRequest("", limit, ""))
        assert isinstance(reply.error, InvalidArgumentError)


async def test_an_unknown_namespace_cannot_be_read_changed_or_deleted(host):
    with pytest.raises(UnknownNamespaceError):
        await host.admin.get_namespace("nobody")
    with pytest.raises(UnknownNamespaceError):
        await host.admin.update_namespace("nobody", attempts_max=1)
    with pytest.raises(UnknownNamespaceError):
        await host.admin.delete_namespace("nobody")


async def test_a_namespace_that_holds_items_is_not_deleted(host):
    for held in ("ready", "delayed", "leased", "dead"):
        item_id = await host.client.enqueue("jobs", "t", b"x", delay_ms=60_000 if held == "delayed" else None)
        if held in ("leased", "dead"):
            (item,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
            if held == "dead":
                await host.client.nack("jobs", [item.receipt], dead_letter=True)
        with pytest.raises(InvalidArgumentError, match="1 items"):
            await host.admin.delete_namespace("jobs")
        await host.admin.delete_items("jobs", [item_id])
        await host.admin.delete_namespace("jobs")
        assert await names(host) == []
        await host.admin.create_namespace("jobs")


async def test_a_deleted_namespace_is_unknown_and_a_new_one_of_its_name_starts_empty(host):
    await host.admin.create_namespace("n", attempts_max=1)
    item_id = await host.client.enqueue("n", "t", b"x")
    await host.client.ack("n", [item_id])
    await host.admin.delete_namespace("n")
    with pytest.raises(UnknownNamespaceError):
        await host.client.enqueue("n", "t", b"x")
    with pytest.raises(UnknownNamespaceError):
        await host.client.dequeue("n", "t")
    await host.admin.create_namespace("n")
    assert (await host.admin.get_namespace("n")).settings == NamespaceSettings()
    assert await host.stats("n") == {}
    await host.client.enqueue("n", "t", b"y")
    (item,) = await host.client.dequeue("n", "t", wait_ms=20_000)
    assert item.payload == b"y"


async def test_a_second_host_sees_what_the_first_one_made(meta_url, shard_urls):
    shares = [{n: url for n, url in shard_urls.items() if n % 2 == half} for half in (0, 1)]
    async with (
        running_host(meta_url, shares[0], name="one") as one,
        running_host(meta_url, shares[1], name="two") as two,
    ):
        await one.admin.create_namespace("n", payload_bytes_max=1)
        assert await names(two, "n") == ["n"]


# ---- limits take effect ----


async def test_lowered_limits_hold_for_the_next_call(host):
    await host.admin.update_namespace(
        "jobs",
        payload_bytes_max=2,
        metadata_bytes_max=1,
        batch_items_max=3,
        lease_ms_default=2_000,
        lease_ms_max=4_000,
        delay_ms_max=1_000,
        ttl_ms_default=500_000,
        ttl_ms_max=600_000,
    )
    within = NewItem("t", b"xx", metadata=b"m", delay_ms=1_000, ttl_ms=600_000, lease_ms=4_000)
    beyond = [
        (NewItem("t", b"xxx"), TooLargeError),
        (NewItem("t", b"", metadata=b"mm"), TooLargeError),
        (NewItem("t", b"", delay_ms=1_001), InvalidArgumentError),
        (NewItem("t", b"", ttl_ms=600_001), InvalidArgumentError),
        (NewItem("t", b"", lease_ms=4_001), InvalidArgumentError),
        (NewItem("t", b"", deliver_after_ms=now_ms() + 600_000), InvalidArgumentError),
    ]
    for item, kind in beyond:
        with pytest.raises(kind):
            await host.client.enqueue("jobs", item.topic, item.payload, **_options(item))
    request = structs.EnqueueRequest("jobs", [within] * 4)
    assert isinstance((await host.call("enqueue", request)).error, TooLargeError)
    assert not (await host.client.enqueue_many("jobs", [within] * 3)).errors
    item_id = await host.client.enqueue("jobs", "now", b"")
    stored = await host.admin.get_item("jobs", item_id)
    assert stored.expires_at_ms == stored.deliver_after_ms + 500_000
    with pytest.raises(InvalidArgumentError):
        await host.client.dequeue("jobs", "now", lease_ms=4_001)
    before = now_ms()
    (item,) = await host.client.dequeue("jobs", "now", wait_ms=20_000)
    assert before - CLOCK_SLACK_MS <= item.lease_expires_at_ms - 2_000 <= now_ms() + CLOCK_SLACK_MS
    with pytest.raises(InvalidArgumentError):
        await host.client.extend("jobs", [item.receipt], 4_001)
    errors = await host.client.nack("jobs", [Nack(item.receipt, metadata=b"mm")], return_errors=True)
    assert isinstance(errors[0], TooLargeError)
    errors = await host.client.nack("jobs", [Nack(item.receipt, delay_ms=1_001)], return_errors=True)
    assert isinstance(errors[0], InvalidArgumentError)


async def test_lowered_limits_leave_stored_items_deliverable(host):
    await host.client.enqueue("jobs", "t", b"x" * 5_000, metadata=b"m" * 500, lease_ms=600_000)
    await host.admin.update_namespace(
        "jobs", payload_bytes_max=0, metadata_bytes_max=0, lease_ms_default=60_000, lease_ms_max=60_000
    )
    (item,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
    assert (len(item.payload), len(item.metadata)) == (5_000, 500)
    assert await host.client.ack("jobs", [item]) == {}


def _options(item: NewItem) -> dict[str, object]:
    named = ("deliver_after_ms", "delay_ms", "ttl_ms", "lease_ms", "metadata")
    return {name: getattr(item, name) for name in named}


# ---- getHostStatus ----


async def test_the_status_names_the_host_and_each_of_its_shards(meta_url, shard_urls):
    before = now_ms()
    async with running_host(meta_url, shard_urls) as host:
        status = await host.admin.host_status()
    assert (status.host, status.draining) == ("test-host", False)
    assert status.version
    assert before - CLOCK_SLACK_MS <= status.started_at_ms <= now_ms() + CLOCK_SLACK_MS
    assert [shard.shard_id for shard in status.shards] == sorted(host.shard_urls)
    assert {shard.state for shard in status.shards} == {"owned"}
    assert all(shard.epoch >= 1 for shard in status.shards)
    assert [(shard.items, shard.open_leases) for shard in status.shards] == [(0, 0)] * 4


async def test_the_status_counts_items_and_leases_of_each_shard(host):
    ids = await host.enqueue_on_all_shards("jobs", [[NewItem("t", b"x")] * 10 for _ in range(8)])
    await host.client.enqueue("jobs", "t", b"x", delay_ms=60_000)
    taken = await host.client.dequeue("jobs", "t", 20, wait_ms=20_000)
    shards = (await host.admin.host_status()).shards
    assert [shard.items for shard in shards] == [len(item_rows(url)) for url in host.shard_urls.values()]
    assert sum(shard.items for shard in shards) == len(ids) + 1
    assert sum(shard.open_leases for shard in shards) >= len(taken)


async def test_a_restarted_host_has_a_higher_epoch_on_every_shard(meta_url, shard_urls):
    epochs = []
    for _ in range(2):
        async with running_host(meta_url, shard_urls) as host:
            status = await host.admin.host_status()
            epochs.append({shard.shard_id: shard.epoch for shard in status.shards})
    assert all(epochs[1][shard_id] > epoch for shard_id, epoch in epochs[0].items())
