"""A history that is checked in parts: the verdict is that on the whole."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from foqs.model.calls import ItemState
from tests.histories.checker import check, check_files, main
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
