"""What the retention of the event log removes, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

from foqs.host.event_log.retention import retain
from foqs.model.event_log import LIVES

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
