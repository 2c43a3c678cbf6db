"""What the retention of the event log removes, and what it leaves alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foqs.host.event_log.retention import Kept, retain
from foqs.model.event_log import LIVES, ROLLUPS

_NOW_S = 1_800_000_000.0
_OLD, _NEW = "date=2026-11-01/hour=05", "date=2027-01-15/hour=07"


def _put(directory: Path, folder: str, name: str, size_bytes: int = 10) -> Path:
    path = directory / LIVES / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size_bytes)
    return path


def test_what_is_no_file_of_an_event_log_stays(tmp_path: Path) -> None:
    closed = _put(tmp_path, _OLD, "host-1-000001.jsonl.gz")
    torn = _put(tmp_path, _OLD, "_host-1-000002.jsonl.gz.recovering")
    notes = _put(tmp_path, _OLD, "notes.txt", 1_000)
    kept = retain(tmp_path, 0, 7, _NOW_S)
    assert (kept.size_bytes, kept.removed_count, kept.failure) == (0, 2, None)
    assert not closed.exists()
    assert not torn.exists()
    assert notes.exists()


def test_a_file_that_cannot_be_removed_keeps_no_other_one(tmp_path: Path) -> None:
    stuck = tmp_path / LIVES / _OLD / "a-000001.jsonl.gz"
    (stuck / "inside").mkdir(parents=True)  # Nothing unlinks a folder.
    old, new = _put(tmp_path, _OLD, "b-000001.jsonl.gz"), _put(tmp_path, _NEW, "c-000001.jsonl.gz")
    kept = retain(tmp_path, 1_000_000, 7, _NOW_S)
    assert isinstance(kept.failure, OSError)
    assert kept.removed_count == 1
    assert stuck.exists()
    assert not old.exists()
    assert new.exists()


@pytest.mark.parametrize("name", ["date=2020-02-30/hour=05", "date=2020-01-01/hour=24", "date=0000-01-01/hour=00"])
def test_a_folder_of_no_hour_that_ever_was_stays_and_keeps_no_other_one(tmp_path: Path, name: str) -> None:
    odd = _put(tmp_path, name, "a-000001.jsonl.gz")
    old = _put(tmp_path, _OLD, "b-000001.jsonl.gz")
    kept = retain(tmp_path, 1_000_000, 7, _NOW_S)
    assert (kept.removed_count, kept.failure) == (1, None)
    assert odd.exists()
    assert not old.exists()


def test_a_file_in_the_place_of_a_folder_keeps_no_other_one(tmp_path: Path) -> None:
    old = _put(tmp_path, _OLD, "b-000001.jsonl.gz")
    (tmp_path / LIVES / "date=2026-10-01").mkdir()
    (tmp_path / LIVES / "date=2026-10-01" / "hour=02").write_text("no folder")
    (tmp_path / LIVES / "date=2026-10-02").write_text("no folder")
    (tmp_path / ROLLUPS).write_text("no folder")
    kept = retain(tmp_path, 1_000_000, 7, _NOW_S)
    assert isinstance(kept.failure, NotADirectoryError)
    assert kept.removed_count == 1
    assert not old.exists()


@pytest.mark.parametrize("refused", [LIVES, f"{LIVES}/date=2026-10-01", f"{LIVES}/date=2026-10-01/hour=05"])
def test_a_folder_that_may_not_be_read_is_told_and_keeps_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    _put(tmp_path, "date=2026-10-01/hour=05", "a-000001.jsonl.gz")
    old = _put(tmp_path, _OLD, "b-000001.jsonl.gz")
    of_rollups = tmp_path / ROLLUPS / _OLD / "c-000001.jsonl.gz"
    of_rollups.parent.mkdir(parents=True)
    of_rollups.write_bytes(b"x")
    scandir = os.scandir

    def refusing(folder: Path) -> object:
        if Path(folder) == tmp_path / refused:
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    kept = retain(tmp_path, 1_000_000, 7, _NOW_S)
    assert isinstance(kept.failure, PermissionError)
    assert not of_rollups.exists()
    assert old.exists() == (refused == LIVES)
    assert kept.removed_count == (1 if refused == LIVES else 2)


def test_a_directory_of_which_nothing_was_made_yet_has_nothing_to_remove(tmp_path: Path) -> None:
    assert retain(tmp_path / "none", 0, 7, _NOW_S) == Kept(0, 0)
