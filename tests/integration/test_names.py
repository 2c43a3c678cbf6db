"""Every name that the service takes comes back as it was: through commands, pages and page tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest
from click.testing import CliRunner, Result
from hypothesis import given

from foqs.cli.main import cli
from foqs.model.shown_text import one_line
from foqs.testing import MemoryQueue
from foqs.wire.codec import structs
from tests.support.names import ODD_NAMES, names
from tests.support.running_host import RunningHost, running_host

pytestmark = [pytest.mark.database, pytest.mark.deep]


@pytest.fixture
async def host(meta_url: str, shard_urls: dict[int, str]) -> AsyncIterator[RunningHost]:
    async with running_host(meta_url, shard_urls) as running:
        for name in ODD_NAMES:
            await running.client.enqueue("jobs", name, name.encode())
            await running.admin.set_topic_policy("jobs", name, weight=2, reason=name)
        yield running


async def _run(host: RunningHost, *arguments: str) -> Result:
    result = await asyncio.to_thread(
        CliRunner().invoke, cli, [*arguments], env={"FOQS_ADDRESS": host.address}, prog_name="foqs"
    )
    assert result.exit_code == 0, result.output
    return result


async def test_documents_have_names_as_they_are_and_tables_without_unsafe_characters(host: RunningHost) -> None:
    shown = sorted(map(one_line, ODD_NAMES))
    lines = (await _run(host, "topics", "jobs")).stdout.split("\n")[1:-1]
    assert sorted(line.split("\t")[-1] for line in lines) == shown
    document = json.loads((await _run(host, "topics", "jobs", "--output", "json")).stdout)
    assert sorted(one["topic"] for one in document) == sorted(ODD_NAMES)
    lines = (await _run(host, "item", "list", "jobs")).stdout.split("\n")[1:-1]
    assert sorted(line.split("\t")[1] for line in lines) == shown
    lines = (await _run(host, "topic", "policies", "jobs")).stdout.split("\n")[1:-1]
    assert sorted(line.split("\t")[0] for line in lines) == shown


async def test_commands_take_names_as_they_are(host: RunningHost) -> None:
    for name in ODD_NAMES:
        listed = await _run(host, "item", "list", "jobs", f"--topic={name}", "--output", "json")
        assert [json.loads(line)["topic"] for line in listed.stdout.splitlines()] == [name]
        taken = await _run(host, "dequeue", "jobs", "--output", "json", "--wait-ms", "20000", "--", name)
        (item,) = json.loads(taken.stdout)
        assert (item["topic"], item["payload"]) == (name, name)


async def test_pages_of_one_go_through_all_names(host: RunningHost) -> None:
    topics = await _pages(
        lambda token: host.call("getActiveTopics", structs.ActiveTopicsRequest("jobs", "", 1, token)), "topics"
    )
    assert topics == sorted(ODD_NAMES, key=str.encode)
    policies = await _pages(
        lambda token: host.call("listTopicPolicies", structs.ListTopicPoliciesRequest("jobs", "", 1, token)),
        "policies",
    )
    assert policies == sorted(ODD_NAMES, key=str.encode)


async def _pages(page_of: Callable[[str], object], field: str) -> list[str]:
    found: list[str] = []
    token, is_first = "", True
    while token or is_first:
        reply = await page_of(token)  # type: ignore[misc]
        assert reply.error is None, reply.error
        found += [one.topic for one in getattr(reply.response, field)]
        token, is_first = reply.response.next_page_token, False
    return found


@given(name=names)
def test_any_name_comes_back_from_a_queue(name: str) -> None:
    with MemoryQueue() as queue, queue.client() as client, queue.admin() as admin:
        client.enqueue("default", name, b"x")
        admin.set_topic_policy("default", name, weight=3)
        assert [one.topic for one in client.topics("default", name)] == [name]
        assert [one.topic for one in admin.list_topic_policies("default", name)] == [name]
        assert [one.topic for one in admin.iterate_items("default", topics=name)] == [name]
        assert [one.topic for one in client.dequeue("default", name)] == [name]
