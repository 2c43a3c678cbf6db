"""`foqs item delete`, `foqs item redrive` and `foqs job` against a real host."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import Result

from foqs import JobState, NewItem
from foqs.cli import bulk_commands
from foqs.cli.main import cli
from tests.integration.test_cli_exports import shell
from tests.support.running_host import RunningHost
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_commands, "POLL_S", 0.05)


async def bury(host: RunningHost, count: int, reason: str) -> None:
    await host.client.enqueue_many("jobs", [NewItem("t", b"%d" % n) for n in range(count)])
    await host.client.nack("jobs", await host.leased(count), dead_letter=True, reason=reason)


def table(result: Result) -> dict[str, str]:
    assert result.exit_code == 0, result.output
    return dict(line.split("\t", 1) for line in result.stdout.splitlines()[1:])


async def dead(host: RunningHost) -> int:
    return len((await host.admin.list_dead_letters("jobs", "t", 100)).items)


async def test_a_redrive_counts_asks_and_is_done(host: RunningHost) -> None:
    await host.begin_anew()
    await bury(host, 5, "timeout of the bank")
    await bury(host, 3, "no card")
    dry = await shell(host, "item", "redrive", "jobs", "--error-contains", "timeout", "--dry-run")
    assert (dry.exit_code, dry.stdout) == (0, "5 items match\n")
    no = await shell(host, "item", "redrive", "jobs", "--error-contains", "timeout", typed="n\n")
    assert no.exit_code == 1
    assert "item redrive jobs: 5 items match, really?" in no.stderr
    assert await dead(host) == 8
    yes = await shell(host, "item", "redrive", "jobs", "--error-contains", "timeout", "--topic", "t", typed="y\n")
    shown = table(yes)
    assert (shown["state"], shown["action"], shown["matched"], shown["done"]) == ("succeeded", "redrive", "5", "5")
    assert (shown["items_max"], shown["topics"], shown["error_contains"]) == ("5", "t", "timeout")
    assert await dead(host) == 3
    none = await shell(host, "item", "redrive", "jobs", "--error-contains", "timeout")
    assert (none.exit_code, "no item matches" in none.stderr) == (0, True)


async def test_a_delete_needs_a_filter_or_all(host: RunningHost) -> None:
    await host.begin_anew()
    await host.client.enqueue_many("jobs", [NewItem("t", b"", priority=n) for n in range(6)])
    for options in ((), ("--all", "--topic", "t"), ("--yes",)):
        refused = await shell(host, "item", "delete", "jobs", *options)
        assert (refused.exit_code, "say which items" in refused.stderr) == (2, True), options
    shown = table(await shell(host, "item", "delete", "jobs", "--priority-min", "4", "--state", "ready", "--yes"))
    assert (shown["done"], shown["priority_min"], shown["states"]) == ("2", "4", "ready")
    assert shown["items_max"] == "-"
    stopped = await shell(host, "item", "delete", "jobs", "--all", "--items-max", "3", "--yes")
    assert stopped.exit_code == 6
    assert "items_max, which is 3" in stopped.stdout
    assert table(await shell(host, "item", "delete", "jobs", "--all", "--yes"))["done"] == "1"


async def test_a_delete_by_ids_is_a_call_and_takes_no_filter(host: RunningHost) -> None:
    await host.begin_anew()
    ids = list((await host.client.enqueue_many("jobs", [NewItem("t", b"") for _ in range(4)])).ids)
    for options in (("--topic", "t"), ("--state", "ready"), ("--dry-run",), ("--all",)):
        refused = await shell(host, "item", "delete", "jobs", *ids, *options)
        assert (refused.exit_code, "IDs are given" in refused.stderr) == (2, True), options
    asked = await shell(host, "item", "delete", "jobs", ids[0], typed="n\n")
    assert (asked.exit_code, f"jobs {ids[0]}: really?" in asked.stderr) == (1, True)
    done = await shell(host, "item", "delete", "jobs", *ids[:3], "--yes")
    assert (done.exit_code, "deleted 3" in done.stderr) == (0, True)
    assert [item.id async for item in host.admin.iterate_items("jobs")] == ids[3:]


async def job_of(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


async def test_a_job_is_paused_resumed_cancelled_and_shown(host: RunningHost) -> None:
    await host.begin_anew()
    await host.client.enqueue_many("jobs", [NewItem("t", b"") for _ in range(60)])
    begun = await shell(
        host, "item", "delete", "jobs", "--all", "--yes", "--no-wait", "--items-per-second-max", "5", "--output", "json"
    )
    job = await job_of(begun)
    job_id = job["id"]
    for verb, state in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        assert table(await shell(host, "job", verb, "jobs", job_id))["state"] == state
    refused = await shell(host, "job", "resume", "jobs", job_id)
    assert (refused.exit_code, "is CANCELLED" in refused.stderr) == (2, True)
    shown = await job_of(await shell(host, "job", "show", "jobs", job_id, "--output", "json"))
    assert (shown["state"], shown["bulk"]["work"]["action"]) == ("cancelled", "delete")
    listed = await shell(host, "job", "list", "jobs")
    assert job_id in listed.stdout
    plain = await host.admin.create_job("jobs", "load")
    shown_plain = await shell(host, "job", "show", "jobs", plain.id)
    assert (shown_plain.exit_code, "is no bulk job" in shown_plain.stderr) == (2, True)


async def test_a_redrive_with_a_delay_is_undone(host: RunningHost) -> None:
    await host.begin_anew()
    await bury(host, 4, "no card")
    shown = table(await shell(host, "item", "redrive", "jobs", "--all", "--in", "5m", "--yes"))
    assert shown["done"] == "4"
    assert await dead(host) == 0
    undone = table(await shell(host, "job", "undo", "jobs", shown["id"]))
    assert (undone["action"], undone["done"], undone["undoes"]) == ("undo", "4", shown["id"])
    assert await dead(host) == 4
    watched = table(await shell(host, "job", "show", "jobs", undone["id"], "--watch"))
    assert watched["state"] == "succeeded"
    job = await eventually(lambda: host.admin.get_job("jobs", shown["id"]), lambda job: True)
    assert job.state is JobState.SUCCEEDED


async def test_the_texts_of_a_duration() -> None:
    duration = bulk_commands._Duration()
    assert [duration.convert(text, None, None) for text in ("90s", "15m", "6h", "7d", 5)] == [
        90_000, 900_000, 21_600_000, 604_800_000, 5,
    ]  # fmt: skip
    for text in ("", "5", "5x", "-5s", "5 s"):
        with pytest.raises(Exception, match="is no duration"):
            duration.convert(text, None, None)
    assert cli.name is not None


async def test_a_delay_begins_with_the_answer_to_the_question(
    host: RunningHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator who thinks for a minute still has all of the delay."""
    await host.begin_anew()
    await bury(host, 2, "no card")
    thought_s = [0.0]
    confirm, now_s = bulk_commands.click.confirm, bulk_commands._now_s

    def think(*arguments: Any, **options: Any) -> bool:
        thought_s[0] = 120.0
        return bool(confirm(*arguments, **options))

    monkeypatch.setattr(bulk_commands.click, "confirm", think)
    monkeypatch.setattr(bulk_commands, "_now_s", lambda: now_s() + thought_s[0])
    before_ms = now_s() * 1000
    made = await shell(host, "item", "redrive", "jobs", "--all", "--in", "60s", "--output", "json", typed="y\n")
    job = await job_of(made)
    assert job["bulk"]["work"]["deliver_after_ms"] >= before_ms + 180_000 - 1
    assert f"begins job {job['id']}; foqs job cancel jobs {job['id']} ends it" in made.stderr
