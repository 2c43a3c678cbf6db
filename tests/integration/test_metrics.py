"""What operators count: what became of the items of each namespace, and how far behind a sweep is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from foqs.client.queue_items import NewItem
from foqs.model.errors import RateLimitedError
from foqs.model.item import ItemEvent
from foqs.shard.state import index as shard_index
from tests.support.certificates import Authority
from tests.support.running_host import running_host
from tests.support.waiting import until

pytestmark = pytest.mark.database

STATES = ("ready", "leased", "delayed", "dead")
LEANING = re.compile(r"^(The same|Those|These|They|It|Its|Such) |\bsuch (?!as)|^[A-Z][a-z]+ of them\b")
"""Words of a help that means the one before it, which a scrape does not show beside it."""
UNIT_REFUSED = re.compile(r"_(ms|us|ns|s|secs?|milliseconds|minutes|hours|days|b|[km]i?b)(_|$)")


@pytest.fixture
async def host(meta_url, shard_urls, tmp_path):
    (tmp_path / "events").mkdir()
    issued = Authority(tmp_path).issue("host", hosts=["127.0.0.1"])
    tls = {"tls": "accepted", "tls_cert_file": issued.cert_file, "tls_key_file": issued.key_file}
    async with running_host(meta_url, shard_urls, event_log_dir=str(tmp_path / "events"), **tls) as running:
        yield running


def counted(host, namespace: str = "jobs") -> dict[str, float]:
    """The events of the namespace that happened at all."""
    registry = host.host.metrics.registry
    labels = [{"namespace": namespace, "event": event.name.lower()} for event in ItemEvent]
    values = {each["event"]: registry.get_sample_value("foqs_item_events_total", each) for each in labels}
    return {event: value for event, value in values.items() if value}


async def test_what_becomes_of_items_is_counted_by_namespace(host):
    await host.admin.create_namespace("others", attempts_max=1)
    await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 5)
    await host.client.enqueue_many("others", [NewItem("t", b"x")] * 2)
    items = await host.client.dequeue("jobs", "t", 5, wait_ms=20_000)
    assert await host.client.extend("jobs", [items[0]], 60_000) == {}
    assert await host.client.ack("jobs", [*items[:3], items[0].receipt], return_errors=True) != {}
    assert await host.client.nack("jobs", [items[3]]) == {}
    assert counted(host) == {"enqueued": 5, "delivered": 5, "extended": 1, "acked": 3, "nacked": 1}
    assert counted(host, "others") == {"enqueued": 2}


async def test_leases_that_end_dead_letters_and_ended_ttls_are_counted(host):
    await host.admin.create_namespace("others", attempts_max=1)
    await host.client.enqueue_many("others", [NewItem("t", b"x")] * 2)
    (nacked,) = await host.client.dequeue("others", "t", 1, wait_ms=20_000)
    assert await host.client.nack("others", [nacked]) == {}
    assert await host.client.dequeue("others", "t", 1, lease_ms=1_000, wait_ms=20_000)
    while counted(host, "others").get("dead_lettered", 0) < 2:
        await host.client.dequeue("others", "t", 1, wait_ms=100)
    await host.client.enqueue_many("others", [NewItem("u", b"x", ttl_ms=1)] * 3)
    while counted(host, "others").get("expired", 0) < 3:
        await host.client.dequeue("others", "u", 1, wait_ms=100)
    assert counted(host, "others") == {
        "enqueued": 5, "delivered": 2, "nacked": 1, "lease_ended": 1, "dead_lettered": 2, "expired": 3
    }  # fmt: skip


async def test_what_the_quota_refuses_is_counted_for_its_namespace(host):
    await host.admin.create_namespace("small", enqueues_per_minute_max=3)
    await host.client.enqueue_many("small", [NewItem("t", b"x")] * 2)
    with pytest.raises(RateLimitedError):
        await host.client.enqueue_many("small", [NewItem("t", b"x")] * 2)
    assert counted(host, "small") == {"enqueued": 2, "rate_limited": 2}


async def test_the_part_of_its_quota_that_a_namespace_has_used_up_is_shown(host):
    await host.admin.create_namespace("small", enqueues_per_minute_max=4)
    assert sample(host, "foqs_quota_used_ratio", namespace="small") is None
    await host.client.enqueue_many("small", [NewItem("t", b"x")] * 3)
    with pytest.raises(RateLimitedError):
        await host.client.enqueue_many("small", [NewItem("t", b"x")] * 2)
    assert sample(host, "foqs_quota_used_ratio", namespace="small") == 3 / 4
    await host.client.enqueue_many("small", [NewItem("t", b"x")])
    assert sample(host, "foqs_quota_used_ratio", namespace="small") == 1


async def test_a_sweep_that_has_woken_all_that_was_due_does_not_lag(host):
    await host.client.enqueue_many("jobs", [NewItem("t", b"x", delay_ms=50)] * 10)
    assert len(await host.client.dequeue("jobs", "t", 10, wait_ms=20_000)) > 0
    await until(
        lambda: all(sample(host, "foqs_delay_sweep_lag_seconds", shard=str(shard)) == 0 for shard in host.shard_urls)
    )


async def test_slow_reads_show_in_the_budget_of_their_shard_alone(host):
    registry = host.host.metrics.registry
    slow, *others = host.shard_urls
    budget = host.host._shards.writers[slow].shard.index.read_budget
    budget.read(shard_index.READ_ROWS_FIRST, 4 * shard_index.READ_US_TARGET)
    assert registry.get_sample_value("foqs_read_budget_rows", {"shard": str(slow)}) == shard_index.READ_ROWS_FIRST // 4
    for shard in others:
        rows = registry.get_sample_value("foqs_read_budget_rows", {"shard": str(shard)})
        assert rows == shard_index.READ_ROWS_FIRST


def sample(host, name: str, **labels: str) -> float | None:
    return host.host.metrics.registry.get_sample_value(name, labels)


async def test_items_are_there_by_namespace_and_state(host):
    await host.admin.create_namespace("empty")
    await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 5 + [NewItem("u", b"x", delay_ms=60_000)] * 2)
    await host.client.dequeue("jobs", "t", 3, wait_ms=20_000)
    states = {state: sample(host, "foqs_namespace_items", namespace="jobs", state=state) for state in STATES}
    assert sum(states.values()) == 7
    assert (states["ready"] + states["leased"], states["delayed"], states["dead"]) == (5, 2, 0)
    assert states["leased"] >= 3
    assert sample(host, "foqs_namespace_items", namespace="empty", state="ready") is None


async def test_long_polls_do_not_count_among_calls(host):
    before = sample(host, "foqs_call_seconds_count", method="dequeue", outcome="OK")
    assert await host.client.dequeue("jobs", "t", wait_ms=20) == []
    assert sample(host, "foqs_call_seconds_count", method="dequeue", outcome="OK") == before
    assert sample(host, "foqs_long_poll_seconds_count", outcome="OK") == 1
    assert sample(host, "foqs_long_poll_seconds_bucket", outcome="OK", le="0.01") == 0
    assert await host.client.dequeue("jobs", "t") == []
    assert sample(host, "foqs_call_seconds_count", method="dequeue", outcome="OK") == (before or 0) + 1


async def test_an_item_that_nobody_takes_ages(host):
    await host.client.enqueue_many("jobs", [NewItem("t", b"x")])
    await until(lambda: any((age(host, shard) or 0) > 0 for shard in host.shard_urls))
    (item,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
    await host.client.ack("jobs", item)
    await until(lambda: all(age(host, shard) == 0 for shard in host.shard_urls))


def age(host, shard: int) -> float | None:
    return sample(host, "foqs_oldest_ready_age_seconds", shard=str(shard))


async def test_how_often_a_breaker_opened_survives_a_take_over(host):
    shard = min(host.shard_urls)
    writer = host.host._shards.writers[shard]
    writer.health.trip(0.0, "a test")
    assert sample(host, "foqs_breaker_opened_total", shard=str(shard)) == 1
    before = writer.shard
    writer._ownership.give_up("a test")
    await until(lambda: writer.shard is not None and writer.shard is not before)
    assert sample(host, "foqs_shard_healthy", shard=str(shard)) == 1
    assert sample(host, "foqs_breaker_opened_total", shard=str(shard)) == 1
    writer.health.trip(0.0, "a test")
    assert sample(host, "foqs_breaker_opened_total", shard=str(shard)) == 2


async def test_metrics_keep_the_conventions_of_prometheus_and_the_document_names_all_of_them(host):
    await host.client.enqueue_many("jobs", [NewItem("t", b"x")])
    await host.client.dequeue("jobs", "t", wait_ms=20_000)
    host.host.metrics.introduce("0.1.0", {"meta": 2})
    text = generate_latest(host.host.metrics.registry).decode()
    families = list(text_string_to_metric_families(text))
    assert complaints(families) == []
    document = (Path(__file__).parents[2] / "docs/operations.md").read_text()
    documented = set(re.findall(r"^\| `(foqs_\w+)` \| (\w+) \| [^|]* \| (.*) \|$", document, re.MULTILINE))
    served = {
        (f"{family.name}_total" if family.type == "counter" else family.name, family.type, family.documentation)
        for family in families
    }
    assert {one for one in served if one[0].startswith("foqs_")} == documented
    assert {name for name, _, _ in served} >= {
        "process_resident_memory_bytes", "process_cpu_seconds_total", "python_info"
    }  # fmt: skip
    assert sample(host, "foqs_event_loop_lag_seconds_count") > 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# HELP foqs_a A count that only grows.\n# TYPE foqs_a gauge\nfoqs_a_created 1\n", "_created"),
        ("# HELP foqs_a_ms How long it took for once.\n# TYPE foqs_a_ms gauge\nfoqs_a_ms 1\n", "unit"),
        ("# HELP foqs_a_total How many there are of them.\n# TYPE foqs_a_total gauge\nfoqs_a_total 1\n", "_total"),
        ("# HELP foqs_a Their bytes\n# TYPE foqs_a gauge\nfoqs_a 1\n", "sentence"),
        ("# HELP foqs_a How many there are of them.\n# TYPE foqs_a gauge\nfoqs_a 1\nfoqs_a 2\n", "twice"),
        ("# TYPE foqs_a gauge\nfoqs_a 1\n", "sentence"),
        ("# HELP foqs_a Those of them that failed.\n# TYPE foqs_a gauge\nfoqs_a 1\n", "by itself"),
        ("# HELP foqs_a Memory for such items.\n# TYPE foqs_a gauge\nfoqs_a 1\n", "by itself"),
        ("# HELP foqs_a Repeats since the host started.\n# TYPE foqs_a gauge\nfoqs_a 1\n", "counter"),
    ],
)
def test_the_conventions_are_checked(text, words):
    assert any(words in complaint for complaint in complaints(list(text_string_to_metric_families(text))))


def complaints(families) -> list[str]:
    """What `promtool check metrics` would say, and what this project asks for beside it."""
    found = []
    for family in families:
        name = family.name
        is_ours = name.startswith("foqs_")
        if not re.fullmatch(r"(foqs|process|python)_[a-z][a-z0-9_]*", name):
            found.append(f"{name}: not in snake_case, or of nobody")
        if is_ours and not re.fullmatch(r"[A-Z0-9][^\n]{20,}\.", family.documentation):
            found.append(f"{name}: its help is no sentence: {family.documentation!r}")
        if is_ours and LEANING.search(family.documentation):
            found.append(f"{name}: its help does not stand by itself: {family.documentation!r}")
        if (
            is_ours
            and family.type == "gauge"
            and re.search(r"since the \w+ (started|was opened)", family.documentation)
        ):
            found.append(f"{name}: what only grows is a counter: {family.documentation!r}")
        if family.type not in ("counter", "gauge", "histogram"):
            found.append(f"{name}: of type {family.type}")
        if UNIT_REFUSED.search(name):
            found.append(f"{name}: its unit is no base unit, or abbreviated")
        if name.endswith(("_total", "_count", "_sum", "_bucket", "_gauge", "_counter", "_histogram")):
            found.append(f"{name}: ends in _total or the like, and is a {family.type}")
        series = [(one.name, tuple(sorted(one.labels.items()))) for one in family.samples]
        found += [f"{one}: twice" for one in set(series) if series.count(one) > 1]
        found += [f"{one.name}: a _created series" for one in family.samples if one.name.endswith("_created")]
        if family.type == "counter":
            found += [f"{one.name}: no _total" for one in family.samples if not one.name.endswith("_total")]
        found += [f"{one.name}: label {label}" for one in family.samples for label in one.labels if label == "topic"]
    return found
