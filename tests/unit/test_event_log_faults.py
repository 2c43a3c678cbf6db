"""What the event log does when the disk or its process fails: it counts, goes on, and keeps what was written."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest.mock import patch

from foqs.host.event_log import files
from foqs.model import limits
from foqs.model.event_log import LIVES
from foqs.model.item import Outcome
from tests.support.event_log import MadeLog, closed_files, lives, open_files

BASE_MS = 1_764_000_000_000


def end(log: MadeLog, count: int = 1) -> None:
    log.end(log.topic("t"), Outcome.ACKED, ready_ms=BASE_MS, wait_ms=5, processing_ms=7, items_count=count)


def test_a_full_disk_loses_events_that_are_counted_and_all_is_well_when_there_is_room_again(tmp_path: Path) -> None:
    log = MadeLog(tmp_path)

    def full(fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    end(log, 3)
    with patch.object(files.os, "write", full):
        log.close()
    assert (log.log.failing, log.log.lives_files.lost_count, log.log.lives_files.written_count) == (True, 3, 0)
    log.now_s += 20
    end(log, 2)
    log.close()
    assert (log.log.failing, log.log.lives_files.lost_count, log.log.lives_files.written_count) == (False, 3, 2)
    assert len(lives(tmp_path)) == 2


def test_a_directory_that_cannot_be_made_loses_events_that_are_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = MadeLog(tmp_path / "file")
    end(log, 4)
    log.close()
    assert (log.log.failing, log.log.lives_files.lost_count) == (True, 4)


def test_what_a_killed_process_flushed_is_recovered_and_its_closed_files_stay(tmp_path: Path) -> None:
    log = MadeLog(tmp_path)
    end(log, 2)
    log.close()
    end(log, 3)
    log.log._pass(close=False)
    log.now_s += 3
    end(log, 1)
    log.log._pass(close=False)  # All of it is flushed by now.
    (open_file,) = [path for path in open_files(tmp_path) if LIVES in str(path)]
    with open_file.open("ab") as torn:
        torn.write(b"half of a block")
    os.close(log.log.lives_files._file._fd)  # As when the process dies: its lock goes.
    assert len(lives(tmp_path)) == 2
    after = MadeLog(tmp_path, now_s=log.now_s + 100)
    after.close()
    assert after.log.recovered_count >= 1
    assert len(lives(tmp_path)) == 6


def test_the_oldest_files_go_when_there_is_too_much_and_what_does_not_fit_the_queue_is_counted(tmp_path: Path) -> None:
    log = MadeLog(tmp_path, days=1)
    end(log)
    log.close()
    log.now_s += 3 * 86_400
    end(log)
    log.close()
    assert len(closed_files(tmp_path, LIVES)) == 1
    with patch.object(limits, "EVENT_LOG_WAITING_MAX", 10):
        end(log, 10)
        end(log, 1)
    assert (log.log.waiting_count, log.log.lost_items_count) == (10, 1)
