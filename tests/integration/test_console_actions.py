"""The actions of the console: each with its command line, its exact count, and one use of its button."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from foqs.model.calls import ItemState
from foqs.testing import MemoryQueue
from tests.support.console_world import ConsoleWorld

HX = {"hx-request": "true"}


@pytest.fixture
def queue() -> Iterator[MemoryQueue]:
    with MemoryQueue(["shop"]) as queue:
        yield queue


@pytest.fixture
def world(queue: MemoryQueue) -> Iterator[ConsoleWorld]:
    with ConsoleWorld(queue, allows_actions=True) as world:
        yield world


def bury(queue: MemoryQueue, topic: str, count: int, reason: str) -> None:
    client = queue.client()
    for _ in range(count):
        client.enqueue("shop", topic, b"{}")
    items = client.dequeue("shop", topic, count)
    for item in items:
        client.nack("shop", item, dead_letter=True, reason=reason)


def token_of(text: str) -> str:
    found = re.search(r'name="token" value="([^"]+)"', text)
    assert found, text
    return found[1]


def counted(world: ConsoleWorld, url: str) -> str:
    """Open the dialog of a bulk action, and return its step with the count."""
    text = world.page(url, **HX)
    assert "Count the items" in text
    for _ in range(200):
        text = world.post("/act", {"token": token_of(text), "ns": "shop"}, **HX).text
        if "Look again" not in text:
            return text
        world.queue.clock.advance(500)
    raise AssertionError("the count does not end")


def until_done(world: ConsoleWorld, job_id: str) -> None:
    for _ in range(200):
        job = world.queue.admin().get_job("shop", job_id)
        if job.state.is_over:
            return
        world.queue.clock.advance(500)
    raise AssertionError("the job does not end")


def test_a_redrive_counts_exactly_carries_the_number_and_is_undone(queue: MemoryQueue, world: ConsoleWorld) -> None:
    bury(queue, "mail", 7, "HTTPError: 503")
    bury(queue, "mail", 2, "ValueError: bad card")
    queue.clock.advance(10)
    text = counted(world, "/ns/shop/act/redrive?topic=mail&error=HTTPError: 503")
    assert '<button class="btn main" id="go">Redrive 7 items</button>' in text
    assert "foqs item redrive --topic mail --error-contains &#39;HTTPError: 503&#39; --died-before" in text
    assert "--items-max 7 shop" in text
    bury(queue, "mail", 3, "HTTPError: 503")  # These have come after the count.
    answer = world.post(
        "/act", {"token": token_of(text), "ns": "shop", "in": "60s", "rate": "0", "reason": "PSP"}, **HX
    )
    assert "Redrive of 7 items has begun." in answer.text
    job_id = re.search(r"/ns/shop/jobs/(bulk-[0-9a-f]+)/progress", answer.text)
    assert job_id, answer.text
    until_done(world, job_id[1])
    admin = queue.admin()
    delayed = list(admin.iterate_items("shop", states=[ItemState.DELAYED]))
    assert [one.errors[0].reason for one in delayed] == ["HTTPError: 503"] * 7
    assert len(list(admin.iterate_items("shop", states=[ItemState.DEAD]))) == 5
    progress = world.page(f"/ns/shop/jobs/{job_id[1]}/progress", **HX)
    assert "7 of 7 redriven, 0 skipped, 0 failed" in progress
    assert "Undo, " in progress
    undo = world.page(f"/ns/shop/act/job-undo?job={job_id[1]}", **HX)
    assert f"foqs job undo shop {job_id[1]}" in undo
    undone = world.post("/act", {"token": token_of(undo), "ns": "shop"}, **HX).text
    assert "The undo has begun." in undone
    until_done(world, re.findall(r"/ns/shop/jobs/(bulk-[0-9a-f]+)", undone)[0])
    assert len(list(admin.iterate_items("shop", states=[ItemState.DEAD]))) == 12


def test_a_button_works_once(queue: MemoryQueue, world: ConsoleWorld) -> None:
    bury(queue, "mail", 2, "no")
    queue.clock.advance(10)
    text = counted(world, "/ns/shop/act/redrive?topic=mail")
    inputs = {"token": token_of(text), "ns": "shop", "in": "", "rate": "100", "reason": ""}
    assert "has begun" in world.post("/act", inputs, **HX).text
    again = world.post("/act", inputs, **HX)
    assert again.status_code == 400
    assert "pressed before" in again.text
    assert len(queue.admin().list_jobs("shop").jobs) == 2, "one that counts and one that redrives"


def test_a_purge_needs_the_typed_name_and_takes_all_states(queue: MemoryQueue, world: ConsoleWorld) -> None:
    bury(queue, "mail", 2, "no")
    client = queue.client()
    for _ in range(4):
        client.enqueue("shop", "mail", b"x")
    client.dequeue("shop", "mail", 1)
    client.enqueue("shop", "mail", b"later", delay_ms=60_000)
    client.enqueue("shop", "other", b"x")
    queue.clock.advance(10)
    text = counted(world, "/ns/shop/act/purge?topic=mail")
    assert "Delete 7 items" in text
    assert "--state ready --state delayed --state leased --state dead" in text
    wrong = world.post(
        "/act", {"token": token_of(text), "ns": "shop", "typed": "mial", "rate": "0", "reason": ""}, **HX
    )
    assert "the typed text is not &#39;mail&#39;: nothing was done" in wrong.text
    right = {"token": token_of(wrong.text), "ns": "shop", "typed": "mail", "rate": "0", "reason": ""}
    begun = world.post("/act", right, **HX).text
    until_done(world, re.findall(r"/ns/shop/jobs/(bulk-[0-9a-f]+)", begun)[0])
    assert [one.topic for one in queue.admin().iterate_items("shop")] == ["other"]


@pytest.mark.parametrize(
    ("url", "inputs", "line", "field", "value"),
    [
        ("act/pause?topic=mail", {"what": "--dequeue", "reason": "it rains"},
         "topic pause shop mail", "dequeue_paused", True),
        ("act/pause?topic=mail", {"what": "--enqueue", "reason": ""}, "topic pause shop mail", "enqueue_paused", True),
        ("act/limits?topic=mail", {"rate": "2.5", "in_flight": "0", "weight": "1", "depth": "0"},
         "topic limit shop mail 0", "deliveries_per_second_max", 2.5),
        ("act/limits?topic=mail", {"rate": "0", "in_flight": "7", "weight": "1", "depth": "0"},
         "topic in-flight shop mail 0", "in_flight_max", 7),
    ],
)  # fmt: skip
def test_a_policy_is_changed_as_the_command_line_says(
    queue: MemoryQueue, world: ConsoleWorld, url: str, inputs: dict[str, str], line: str, field: str, value: object
) -> None:
    text = world.page(f"/ns/shop/{url}", **HX)
    assert f"foqs {line}" in text
    answer = world.post("/act", {"token": token_of(text), "ns": "shop", **inputs}, **HX)
    assert answer.status_code == 200, answer.text
    policy = queue.admin().get_topic_policy("shop", "mail")
    assert getattr(policy, field) == value
    if "it rains" in inputs.values():
        assert policy.reason == "it rains"


def test_a_bad_input_changes_nothing_and_says_why(queue: MemoryQueue, world: ConsoleWorld) -> None:
    text = world.page("/ns/shop/act/limits?topic=mail", **HX)
    for inputs in ({"rate": "-1"}, {"rate": "nan"}, {"weight": "0"}, {"in_flight": "1.5"}, {"depth": "x" * 300}):
        given = {"rate": "0", "in_flight": "0", "weight": "1", "depth": "0", **inputs}
        text = world.post("/act", {"token": token_of(text), "ns": "shop", **given}, **HX).text
        assert "nothing was done" in text, inputs
    assert not list(queue.admin().list_topic_policies("shop"))


def test_a_topic_is_resumed_and_a_namespace_paused_and_resumed(queue: MemoryQueue, world: ConsoleWorld) -> None:
    admin = queue.admin()
    admin.set_topic_policy("shop", "mail", dequeue_paused=True, reason="rain")
    text = world.page("/ns/shop/act/resume?topic=mail", **HX)
    world.post("/act", {"token": token_of(text), "ns": "shop"}, **HX)
    assert not admin.get_topic_policy("shop", "mail").dequeue_paused
    text = world.page("/ns/shop/act/namespace-pause", **HX)
    assert "foqs namespace pause shop" in text
    world.post("/act", {"token": token_of(text), "ns": "shop", "what": "", "reason": "move"}, **HX)
    settings = admin.get_namespace("shop").settings
    assert (settings.enqueue_paused, settings.dequeue_paused, settings.pause_reason) == (True, True, "move")
    text = world.page("/ns/shop/act/namespace-resume", **HX)
    world.post("/act", {"token": token_of(text), "ns": "shop"}, **HX)
    assert not admin.get_namespace("shop").settings.dequeue_paused


def test_leases_of_a_consumer_are_released(queue: MemoryQueue, world: ConsoleWorld) -> None:
    client = queue.client()
    client.enqueue("shop", "mail", b"x")
    client.dequeue("shop", "mail", 1, consumer="pay@1")
    text = world.page("/ns/shop/act/release?consumer=pay@1&topic=mail", **HX)
    assert "foqs consumer release --topic mail shop pay@1" in text
    assert "1 leases were ended" in world.post("/act", {"token": token_of(text), "ns": "shop"}, **HX).text
    assert client.dequeue("shop", "mail", 1)[0].attempt == 1


def test_one_item_is_redriven_and_deleted(queue: MemoryQueue, world: ConsoleWorld) -> None:
    bury(queue, "mail", 1, "no")
    (item,) = queue.admin().list_dead_letters("shop", "mail").items
    text = world.page(f"/ns/shop/act/redrive-item?item={item.id}&topic=mail", **HX)
    assert f"foqs dead-letter redrive shop mail {item.id}" in text
    world.post("/act", {"token": token_of(text), "ns": "shop"}, **HX)
    assert queue.admin().get_item("shop", item.id).state is ItemState.READY
    text = world.page(f"/ns/shop/act/delete-item?item={item.id}", **HX)
    world.post("/act", {"token": token_of(text), "ns": "shop", "typed": item.id}, **HX)
    assert not list(queue.admin().iterate_items("shop"))


def test_a_filter_of_topics_selects_all_that_match_and_not_only_the_page(
    queue: MemoryQueue, world: ConsoleWorld
) -> None:
    for number in range(60):
        bury(queue, f"pay.{number:02}", 1, "no")
    bury(queue, "mail", 1, "no")
    queue.clock.advance(10)
    assert "Redrive 60 items" in counted(world, "/ns/shop/act/redrive?filter=pay*")
    assert "Redrive 10 items" in counted(world, "/ns/shop/act/redrive?filter=pay.5*&show=dead")
    for number in range(60, 120):
        queue.client().enqueue("shop", f"pay.{number}", b"x")
    text = world.page("/ns/shop/act/delete?filter=pay ready<5", 400, **HX)
    assert "the filter matches 120 topics, and an action names 100 at most" in text


def test_a_console_without_actions_shows_none_and_does_none(queue: MemoryQueue) -> None:
    bury(queue, "mail", 1, "no")
    with ConsoleWorld(queue) as world:
        for path in ("/", "/ns/shop/topics", "/ns/shop/topic/mail?tab=dead", "/cluster", "/ns/shop/consumers"):
            assert "data-dialog" not in world.page(path), path
        for action in ("pause?topic=mail", "redrive?topic=mail", "delete-item?item=0-1", "namespace-pause"):
            assert "read only" in world.page(f"/ns/shop/act/{action}", 403)
        assert world.page("/act/shard-drain?shard=0", 403)
        assert world.post("/act", {"token": "x", "ns": "shop"}).status_code == 400


def test_shards_are_drained_and_serve_again(queue: MemoryQueue, world: ConsoleWorld) -> None:
    text = world.page("/act/shard-drain?shard=0", **HX)
    assert "foqs shard drain 0" in text
    answer = world.post("/act", {"token": token_of(text), "ns": "", "typed": "shard 0"}, **HX)
    assert "last" in answer.text, "it is the last one that takes items, which the host refuses"
    assert answer.status_code == 200
    assert "Shard 9" not in world.page("/act/shard-drain?shard=9", 404, **HX)
