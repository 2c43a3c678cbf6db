"""A history that is checked in parts: the verdict is that on the whole."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from foqs.model.calls import ItemState
from tests.histories.checker import check, check_files, main
from tests.histories.dedup_checks import WHOLE_WINDOW
from tests.histories.history import Call, Outcome, Put, Settled, Taken, Verb
from tests.histories.lives import Stored
from tests.histories.splitting import read_stored, write_stored
from tests.unit.test_checker_model import DEFECTS, Model

PARTS = 5


def write(path: Path, calls: list[Call]) -> Path:
    path.write_text("".join(line for call in calls for line in call.lines()))
    return path


def lived(seed: int, defect: str = "") -> tuple[list[Call], list[Stored]]:
    """A history of several clients, as a model of the queue wrote it, and what it stores in the end."""
    model = Model(random.Random(seed), defect)
    model.run(300)
    return model.calls, [Stored(row.item_id, row.put.uid, model.state_of(row)) for row in model.rows.values()]


@pytest.mark.parametrize("seed", range(5))
def test_a_correct_history_is_green_in_parts_and_as_much_is_compared(seed: int, tmp_path: Path) -> None:
    calls, stored = lived(seed)
    whole = check(calls, stored)
    parts = check_files([write(tmp_path / "history", calls)], stored, parts=PARTS)
    assert not parts.violations, str(parts)
    for name in set(whole.counts) - {"answers compared with what stood ready"}:
        assert parts.counts[name] == whole.counts[name], name


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found_in_parts_too(defect: str, tmp_path: Path) -> None:
    def is_found(seed: int) -> bool:
        calls, stored = lived(seed, defect)
        path = write(tmp_path / f"history-{seed}", calls)
        return DEFECTS[defect] in check_files([path], stored, parts=PARTS).promises_broken

    assert any(map(is_found, range(10)))


def test_an_item_whose_enqueue_was_never_answered_is_one_item_in_parts_too(tmp_path: Path) -> None:
    calls = []
    for number in range(1, 40):
        uid, item_id = f"c/{number}", f"0-{number:x}"
        calls.append(Call("producer", number, Verb.ENQUEUE, [Put(uid, "t")], 10 * number))
        taken = Taken(f"{item_id}:1", uid, "t", 0, 10 * number, 9_999, 1)
        calls.append(
            Call("consumer", number, Verb.DEQUEUE, ["t"], 10 * number + 1, 10 * number + 2, Outcome.OK, taken=[taken])
        )
        settled = [Settled(taken.receipt)]
        calls.append(Call("acker", number, Verb.ACK, settled, 10 * number + 3, 10 * number + 4, Outcome.OK))
    paths = [
        write(tmp_path / name, [call for call in calls if call.client == name])
        for name in ("consumer", "producer", "acker")
    ]
    assert not check_files(paths, [], parts=PARTS).violations
    assert check_files(paths[:1] + paths[2:], [], parts=PARTS).promises_broken == {"P1"}
    dead = [Stored("0-1", "c/1", ItemState.DEAD)]
    assert check_files(paths, dead, parts=PARTS).promises_broken == {"P5"}


def repeated(count: int) -> tuple[list[Call], list[Stored]]:
    """Enqueues with dedup ids, each done, repeated after its item was acked, and once without an answer."""
    calls: list[Call] = []

    def add(verb: Verb, asked: list[Any], outcome: Outcome = Outcome.OK, **answer: Any) -> None:
        at_ms = 10 * len(calls)
        calls.append(Call("client", len(calls), verb, asked, at_ms, at_ms + 8, outcome, **answer))

    for number in range(1, count + 1):
        item_id, dedup_id = f"0-{number:x}", f"d{number}"
        due_ms = 10 * len(calls)
        add(Verb.ENQUEUE, [Put(f"first/{number}", "t", dedup_id=dedup_id)], ids=[item_id])
        taken = Taken(f"{item_id}:1", f"first/{number}", "t", 0, due_ms, due_ms + 9_999, 1)
        add(Verb.DEQUEUE, ["t"], taken=[taken])
        add(Verb.ACK, [Settled(taken.receipt)])
        add(Verb.ENQUEUE, [Put(f"second/{number}", "t", dedup_id=dedup_id)], Outcome.INFO)
        add(Verb.ENQUEUE, [Put(f"third/{number}", "t", dedup_id=dedup_id)], ids=[item_id], duplicates=[0])
    return calls, []


def test_all_that_was_enqueued_with_one_dedup_id_is_in_one_part(tmp_path: Path) -> None:
    calls, stored = repeated(40)
    whole = check(calls, stored, dedup=WHOLE_WINDOW)
    parts = check_files([write(tmp_path / "right", calls)], stored, parts=PARTS, dedup=WHOLE_WINDOW)
    assert not parts.violations, str(parts)
    assert parts.counts["pairs of enqueues with one dedup id"] == 40 * 3
    for name in set(whole.counts) - {"answers compared with what stood ready"}:
        assert parts.counts[name] == whole.counts[name], name


def test_a_second_item_of_a_dedup_id_is_found_in_parts_too_unless_too_many_ids_came_in_between(tmp_path: Path) -> None:
    calls, stored = repeated(40)
    calls.append(Call("late", 1, Verb.ENQUEUE, [Put("late", "t", dedup_id="d1")], 9_000, 9_008, Outcome.OK, ["0-99"]))
    stored.append(Stored("0-99", "late", ItemState.DEAD))
    path = write(tmp_path / "wrong", calls)
    assert check_files([path], stored, parts=PARTS, dedup=WHOLE_WINDOW).promises_broken == {"P13"}
    within, beyond = WHOLE_WINDOW._replace(ids=122), WHOLE_WINDOW._replace(ids=121)
    assert check_files([path], stored, parts=PARTS, dedup=within).promises_broken == {"P13"}
    assert not check_files([path], stored, parts=PARTS, dedup=beyond).violations


def test_the_command_says_what_is_broken_and_ends_with_one(tmp_path: Path) -> None:
    calls, stored = lived(0)
    history, rows = write(tmp_path / "history", calls), tmp_path / "rows"
    write_stored(rows, stored)
    assert read_stored(rows) == stored
    done = CliRunner().invoke(main, [str(history), "--stored", str(rows), "--parts", "3"])
    assert (done.exit_code, done.output.split(";")[0]) == (0, "0 violations")
    acked = next(call.asked[0].receipt for call in calls if call.verb is Verb.ACK and call.outcome is Outcome.OK)
    write_stored(rows, [*stored, Stored(acked.partition(":")[0], "nobody", ItemState.READY)])
    done = CliRunner().invoke(main, [str(history), "--stored", str(rows)])
    assert done.exit_code == 1
    assert "P9: " in done.output


def test_the_command_checks_dedup_ids_unless_told_that_some_were_forgotten(tmp_path: Path) -> None:
    calls, _ = repeated(3)
    calls[-1].ids = ["0-99"]
    history = str(write(tmp_path / "history", calls))
    done = CliRunner().invoke(main, [history])
    assert done.exit_code == 1
    assert "P13: " in done.output
    assert CliRunner().invoke(main, [history, "--no-dedup"]).exit_code == 0
