"""`foqs item list` and `foqs topic purge` against a real host."""

from __future__ import annotations

import asyncio
import json

import pytest
from click.testing import CliRunner, Result

from foqs.cli import topic_commands as topic_command
from foqs.cli.main import cli
from foqs.client.queue_items import NewItem
from foqs.client.sync import AdminClient
from foqs.model.calls import ItemState
from foqs.model.errors import UnavailableError
from tests.integration.test_call_exports import everywhere
from tests.integration.test_call_items import one_of_each_state
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def shell(host, *arguments: str, typed: str | None = None) -> Result:
    def run() -> Result:
        return CliRunner().invoke(cli, [*arguments, "--address", host.address], input=typed)

    return await asyncio.to_thread(run)


async def ids_listed(host, *options: str) -> list[str]:
    result = await shell(host, "item", "list", "jobs", "--output", "json", *options)
    assert result.exit_code == 0, result.output
    return [json.loads(line)["id"] for line in result.stdout.splitlines() if line.startswith("{")]


# ---- item list ----


async def test_items_are_listed_in_every_state(host):
    ids = await one_of_each_state(host)
    result = await shell(host, "item", "list", "jobs")
    head, *rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert head == [
        "ID",
        "TOPIC",
        "STATE",
        "PRIORITY",
        "DELIVER AFTER",
        "FAILED",
        "DEATH REASON",
        "LAST ERROR",
        "PAYLOAD",
    ]
    assert {(row[0], row[2]) for row in rows} == {(item_id, state.name.lower()) for state, item_id in ids.items()}
    assert {row[-1] for row in rows} == {state.name for state in ids}
    for state, item_id in ids.items():
        assert await ids_listed(host, "--state", state.name.lower()) == [item_id]
    both = await ids_listed(host, "--state", "dead", "--state", "ready")
    assert sorted(both) == sorted([ids[ItemState.DEAD], ids[ItemState.READY]])


async def test_a_list_can_be_narrowed_and_cut(host):
    ids = await everywhere(host, topics=("mail", "map", "news"))
    assert sorted(await ids_listed(host)) == sorted(ids)
    assert len(await ids_listed(host, "--limit", "7")) == 7
    stats = await host.stats("jobs")
    assert len(await ids_listed(host, "--topic", "map", "--topic", "news")) == stats["map"].ready + stats["news"].ready
    assert len(await ids_listed(host, "--topic-prefix", "ma")) == stats["map"].ready + stats["mail"].ready
    assert await ids_listed(host, "--topic", "none") == []


async def test_payloads_are_left_out_on_request(host):
    await host.client.enqueue("jobs", "t", b"secret")
    result = await shell(host, "item", "list", "jobs", "--no-payload")
    assert "PAYLOAD" not in result.stdout
    assert "secret" not in result.stdout
    result = await shell(host, "item", "list", "jobs", "--no-payload", "--output", "json")
    assert json.loads(result.stdout)["payload"] == ""


async def test_a_list_of_an_unknown_namespace_says_so(host):
    result = await shell(host, "item", "list", "nobody")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "nobody" in result.stderr


# ---- topic purge ----


async def test_a_purge_deletes_all_of_the_topic_and_nothing_else(host):
    await one_of_each_state(host)
    ids = await everywhere(host, topics=("t", "u"))
    result = await shell(host, "topic", "purge", "jobs", "t", "--yes")
    assert (result.exit_code, result.stdout) == (0, f"{len(ids) // 2 + 4} deleted\n"), result.output
    stats = await host.stats("jobs")
    assert {topic: found.ready for topic, found in stats.items()} == {"u": len(ids) // 2}
    again = await shell(host, "topic", "purge", "jobs", "t", "--yes")
    assert (again.exit_code, again.stdout) == (0, "0 deleted\n")


async def test_a_purge_takes_only_the_states_that_it_is_told(host):
    for state in ItemState:
        await host.begin_anew()
        ids = await one_of_each_state(host)
        result = await shell(
            host, "topic", "purge", "jobs", "t", "--state", state.name.lower(), "--yes", "--output", "json"
        )
        assert json.loads(result.stdout) == {"deleted": 1, "gone": 0, "failed": 0}
        left = {one.state async for one in host.admin.iterate_items("jobs")}
        assert left == ids.keys() - {state}


async def test_a_purge_tells_what_there_is_and_wants_the_name_of_the_topic(host):
    await one_of_each_state(host)
    await host.client.enqueue("jobs", "tt", b"x")
    for typed in ("y\n", "\ntt\n", "T\n"):
        result = await shell(host, "topic", "purge", "jobs", "t", typed=typed)
        assert result.exit_code == 1
        assert "4 items of topic t in namespace jobs will be deleted (1 ready, 1 delayed, 1 leased, 1 dead)" in (
            result.stderr
        )
    assert host.items_stored() == 5
    result = await shell(host, "topic", "purge", "jobs", "t", "--state", "ready", "--state", "dead", typed="t\n")
    assert "2 items" in result.stderr
    assert result.stdout == "2 deleted\n"
    assert host.items_stored() == 3


async def test_what_is_enqueued_during_a_purge_stays(host, monkeypatch):
    await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 20)
    loop, delete = asyncio.get_running_loop(), topic_command._delete

    def enqueue_first(*arguments):
        asyncio.run_coroutine_threadsafe(host.client.enqueue("jobs", "t", b"new"), loop).result(PATIENCE_S)
        delete(*arguments)

    monkeypatch.setattr(topic_command, "_delete", enqueue_first)
    result = await shell(host, "topic", "purge", "jobs", "t", "--yes")
    assert result.stdout == "20 deleted\n"
    assert [one.payload async for one in host.admin.iterate_items("jobs")] == [b"new"]


async def test_what_is_enqueued_while_a_purge_waits_for_its_answer_stays(host, monkeypatch):
    await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 20)
    loop = asyncio.get_running_loop()

    def enqueue_first(*_, **__):
        asyncio.run_coroutine_threadsafe(host.client.enqueue("jobs", "t", b"new"), loop).result(PATIENCE_S)
        return "t"

    monkeypatch.setattr(topic_command.click, "prompt", enqueue_first)
    result = await shell(host, "topic", "purge", "jobs", "t")
    assert "20 items of topic t" in result.stderr
    assert result.stdout == "20 deleted\n"
    assert [one.payload async for one in host.admin.iterate_items("jobs")] == [b"new"]


async def test_each_page_of_a_purge_is_deleted_before_the_next_one_is_read(host, monkeypatch):
    ids = await everywhere(host, topics=("t",))
    calls, export_items, delete_items = [], AdminClient.export_items, AdminClient.delete_items

    def export(self, *arguments, **options):
        page = export_items(self, *arguments, **options)
        calls.append(("read", [one.id for one in page.items]))
        return page

    def delete(self, namespace, some, **options):
        calls.append(("delete", list(some)))
        return delete_items(self, namespace, some, **options)

    monkeypatch.setattr(AdminClient, "export_items", export)
    monkeypatch.setattr(AdminClient, "delete_items", delete)
    result = await shell(host, "topic", "purge", "jobs", "t", "--yes")
    assert result.stdout == f"{len(ids)} deleted\n"
    assert [what for what, _ in calls] == ["read", "delete"] * len(host.shard_urls), "a page of each shard"
    assert [some for _, some in calls[::2]] == [some for _, some in calls[1::2]]


async def test_what_is_acked_during_a_purge_is_not_counted_as_deleted(host, monkeypatch):
    ids = (await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 20)).ids
    loop, delete = asyncio.get_running_loop(), topic_command._delete

    def ack_first(*arguments):
        asyncio.run_coroutine_threadsafe(host.client.ack("jobs", ids[:5]), loop).result(PATIENCE_S)
        delete(*arguments)

    monkeypatch.setattr(topic_command, "_delete", ack_first)
    monkeypatch.setattr(topic_command, "PROGRESS_EVERY_S", 0)
    result = await shell(host, "topic", "purge", "jobs", "t", "--yes")
    assert result.stdout == "15 deleted, 5 were gone before\n"
    assert "15 deleted so far" in result.stderr


async def test_a_purge_that_fails_says_how_far_it_came(host, monkeypatch):
    await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 20)
    monkeypatch.setattr(topic_command, "IDS_PER_CALL", 10)
    delete, calls = topic_command._delete, []

    def fail_later(*arguments):
        calls.append(arguments)
        if len(calls) > 1:
            raise UnavailableError("the host went away")
        delete(*arguments)

    monkeypatch.setattr(topic_command, "_delete", fail_later)
    result = await shell(host, "topic", "purge", "jobs", "t", "--yes")
    assert (result.exit_code, result.stdout) == (5, "10 deleted\n")
    assert "the host went away" in result.stderr
    monkeypatch.undo()
    result = await shell(host, "topic", "purge", "jobs", "t", "--yes")
    assert (result.exit_code, result.stdout) == (0, "10 deleted\n")


async def test_an_item_that_is_being_settled_is_asked_for_again(host, monkeypatch):
    await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 3)
    tries = []

    class Admin:
        def delete_items(self, namespace, ids, *, return_errors):
            tries.append(list(ids))
            return {} if len(tries) == 3 else {0: UnavailableError("being settled", nothing_done=True)}

    purged, errors = topic_command.Purged(), []
    monkeypatch.setattr(topic_command, "SETTLED_PAUSE_S", 0)
    topic_command._delete(Admin(), "jobs", ["a", "b"], purged, errors)
    assert tries == [["a", "b"], ["a"], ["a"]]
    assert (purged, errors) == (topic_command.Purged(deleted=2), [])
