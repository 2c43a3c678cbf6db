"""`foqs shard ...` over a socket."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from click.testing import CliRunner, Result

from foqs.cli import shard_commands
from foqs.cli.main import cli
from foqs.model.cluster import ShardHealth, ShardUse
from tests.support.background_host import background_host
from tests.support.fake_queue import FakeQueue

PLACE = "mysql://db-2:3306/foqs_shard_7"
Run = Callable[..., Result]


@pytest.fixture
def shell() -> Iterator[tuple[Run, FakeQueue]]:
    with background_host() as (address, queue):

        def run(*arguments: str) -> Result:
            return CliRunner().invoke(cli, ["shard", *arguments, "--address", address], prog_name="foqs")

        yield run, queue


def test_a_shard_is_added_drained_moved_and_removed(shell: tuple[Run, FakeQueue]) -> None:
    run, queue = shell
    assert run("add", "7", PLACE, "--tier", "gold").exit_code == 0
    assert (queue.shards[7].place, queue.shards[7].tier) == (PLACE, "gold")
    assert run("drain", "7").exit_code == 2, "no other one takes items"
    assert run("drain", "7", "--last").exit_code == 0
    assert queue.shards[7].state is ShardUse.DRAINING
    assert run("serve", "7").exit_code == 0
    assert queue.shards[7].state is ShardUse.SERVING
    assert run("move", "7", "host-2").exit_code == 0
    assert (queue.shards[7].pinned_to, queue.shards[7].tier) == ("host-2", "gold")
    assert run("move", "7").exit_code == 0
    assert queue.shards[7].pinned_to == ""
    refused = run("remove", "7")
    assert (refused.exit_code, queue.shards[7].state) == (1, ShardUse.SERVING), "it was not confirmed"
    assert f"foqs shard remove 7 (database {PLACE}): really?" in refused.stderr
    assert run("remove", "8").exit_code == 3, "there is none to ask about"
    assert run("remove", "7", "--yes").exit_code == 0
    assert queue.shards[7].state is ShardUse.REMOVED


def test_a_host_or_a_tier_that_no_host_has_is_done_and_told(shell: tuple[Run, FakeQueue]) -> None:
    run, queue = shell
    added = run("add", "7", PLACE, "--tier", "gold")
    words = "no host of tier 'gold' lives now: nobody serves shard 7 until one comes; see foqs hosts\n"
    assert (added.exit_code, added.stderr) == (0, words)
    assert run("add", "8", PLACE).stderr == ""
    moved = run("move", "7", "nohost")
    words = "no host 'nohost' lives now: others serve shard 7 until it comes; see foqs hosts\n"
    assert (moved.exit_code, moved.stderr) == (0, words)
    assert queue.shards[7].pinned_to == "nohost"
    assert run("move", "7", "fake").stderr == run("move", "7").stderr == run("move", "7", "--tier", "").stderr == ""
    assert "no host of tier 'nosuch' lives now" in run("move", "7", "--tier", "nosuch").stderr


def test_the_list_is_a_table_or_json(shell: tuple[Run, FakeQueue]) -> None:
    run, _ = shell
    run("add", "7", PLACE)
    header, row = [line.split("\t") for line in run("list").stdout.splitlines()]
    shown = dict(zip(header, row, strict=True))
    assert (shown["SHARD"], shown["STATE"], shown["PLACE"]) == ("7", "serving", PLACE)
    (document,) = json.loads(run("list", "--output", "json").stdout)
    assert (document["shard_id"], document["place"]) == (7, PLACE)


@pytest.mark.parametrize(
    ("health", "words"),
    [
        (ShardHealth.SICK, "shard 7: it is sick: too slow"),
        (ShardHealth.UNSERVED, "shard 7: no host serves it: too slow"),
        (ShardHealth.UNKNOWN, "shard 7: it is not known who serves it: too slow"),
    ],
)
def test_a_shard_that_is_not_well_is_listed_as_such_with_the_reason(
    shell: tuple[Run, FakeQueue], health: ShardHealth, words: str
) -> None:
    run, queue = shell
    run("add", "7", PLACE)
    assert run("list").stderr == ""
    queue.shards[7] = replace(queue.shards[7], health=health, detail="too slow", last_owner="h#1")
    listed = run("list")
    header, row = [line.split("\t") for line in listed.stdout.splitlines()]
    assert dict(zip(header, row, strict=True))["HEALTH"] == health.name.lower()
    assert listed.stderr == words + "\n"
    (document,) = json.loads(run("list", "--output", "json").stdout)
    assert (document["health"], document["detail"]) == (health.name.lower(), "too slow")
    assert (document["owner"], document["last_owner"]) == ("", "h#1")
    queue.shards[7] = replace(queue.shards[7], state=ShardUse.REMOVED)
    assert run("list").stderr == "", "nobody is to serve it"


def test_what_is_not_there_or_there_already_has_an_exit_code_of_its_own(shell: tuple[Run, FakeQueue]) -> None:
    run, _ = shell
    assert run("drain", "8").exit_code == 3
    run("add", "7", PLACE)
    assert run("add", "7", PLACE).exit_code == 4
    assert run("add", "70000", PLACE).exit_code == 2


def test_a_slot_is_ungated_only_by_force(shell: tuple[Run, FakeQueue]) -> None:
    run, queue = shell
    refused = run("ungate", "7")
    assert (refused.exit_code, queue.gated_slots) == (2, {7: 3})
    assert "slot 7 waits for shard 3" in refused.stderr
    done = run("ungate", "7", "--force", "--output", "json")
    assert (done.exit_code, json.loads(done.stdout), queue.gated_slots) == (0, {"ungated": 7}, {})
    none = run("ungate", "7", "--force")
    assert (none.exit_code, "slot 7 has no gate" in none.stderr) == (3, True)


@pytest.mark.parametrize("slot", ["-1", "1024", "x"])
def test_a_slot_that_is_none_is_refused_before_any_call(shell: tuple[Run, FakeQueue], slot: str) -> None:
    run, queue = shell
    assert run("ungate", "--force", "--", slot).exit_code == 2
    assert queue.gated_slots == {7: 3}


def test_a_shard_is_parked_relocated_and_unparked(shell: tuple[Run, FakeQueue]) -> None:
    run, queue = shell
    assert run("add", "7", PLACE).exit_code == 0
    assert run("park", "7").exit_code == 2, "no other one takes items"
    parked = run("park", "7", "--last")
    assert (parked.exit_code, queue.shards[7].state) == (0, ShardUse.PARKED)
    assert "nobody serves shard 7 now" in parked.stderr
    assert run("serve", "7").exit_code == 2, "it would be opened in the midst of a restore"
    moved = run("relocate", "7", "mysql://db-3:3306/foqs_7")
    assert (moved.exit_code, queue.shards[7].place) == (0, "mysql://db-3:3306/foqs_7")
    assert run("list").stderr == "", "a parked shard is no problem"
    assert run("unpark", "7").exit_code == 0
    assert queue.shards[7].state is ShardUse.SERVING


def test_a_shard_whose_owner_does_not_leave_is_not_said_to_be_parked(
    shell: tuple[Run, FakeQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, queue = shell
    monkeypatch.setattr(shard_commands, "_WAIT_S_MAX", 0)
    assert run("add", "7", PLACE).exit_code == 0
    queue.shards[7] = replace(queue.shards[7], kept_by="its last owner host-1")
    parked = run("park", "7", "--last")
    assert parked.exit_code != 0
    assert "it still has its last owner host-1: do not touch its database" in parked.stderr
    queue.shards[7] = replace(queue.shards[7], health=ShardHealth.UNSERVED, detail="no host has taken it yet")
    unparked = run("unpark", "7")
    assert unparked.exit_code != 0
    assert "shard 7 is unparked, and after 0 s no host serves it: no host has taken it yet" in unparked.stderr
