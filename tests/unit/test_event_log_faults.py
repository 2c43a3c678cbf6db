"""What the event log does when the disk or its process fails: it counts, goes on, and keeps what was written."""

from __future__ import annotations

import errno
import gzip
import io
import os
import random
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from structlog.testing import capture_logs

from foqs.host.event_log import files
from foqs.host.event_log.recovery import WORK_SUFFIX
from foqs.model import limits
from foqs.model.event_log import LIVES, FileLines
from foqs.model.item import Outcome
from tests.support.event_log import MadeLog, closed_files, lives, open_files, rollups
from tests.support.waiting import PATIENCE_S

BASE_MS = 1_764_000_000_000


def end(log: MadeLog, count: int = 1) -> None:
    log.end(log.topic("t"), Outcome.ACKED, ready_ms=BASE_MS, wait_ms=5, processing_ms=7, items_count=count)


@contextmanager
def refusing(*calls: str) -> Iterator[None]:
    """The disk is full, or these calls fail."""

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with ExitStack() as stack:
        for call in calls or ("write",):
            stack.enter_context(patch.object(files.os, call, fail))
        yield


def rows_by_outcome(directory: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rollups(directory):
        found[row["outcome"]] += row["count"]
    return found


def test_what_a_full_disk_refuses_is_written_once_when_there_is_room_again(tmp_path: Path) -> None:
    log = MadeLog(tmp_path)
    end(log, 3)
    log.passes()
    log.passes(3)  # Flushed.
    end(log, 5)
    with refusing():
        log.passes(70)  # The minute is over.
        assert log.log.failing
        end(log, 7)
        log.passes(5)
        log.passes(5.1)
        assert log.log.failing
    end(log, 2)
    log.passes(10.1)
    assert not log.log.failing
    log.close()
    log.passes(61)
    assert (log.log.lives_files.lost_count, log.log.lives_files.written_count) == (0, 17)
    assert log.log.recovered_count == 1, "the file that had something when the disk was full"
    assert len(lives(tmp_path)) == 17
    assert rows_by_outcome(tmp_path) == {"acked": 17}


def test_what_waits_for_a_full_disk_is_bounded_and_what_goes_is_told(tmp_path: Path) -> None:
    log = MadeLog(tmp_path)
    with refusing(), patch.object(limits, "EVENT_LOG_UNWRITTEN_BYTES_MAX", 2_000):
        for minute in range(20):
            at_ms = BASE_MS + minute * limits.MINUTE_MS
            log.end(log.topic("t"), Outcome.ACKED, ready_ms=at_ms, wait_ms=5, processing_ms=7, items_count=10)
            log.passes(60)
        log.passes(60)
    assert 0 < log.log.rollups_files.lost_count < 20
    assert 0 < log.log.lives_files.lost_count < 200
    log.passes(11)
    log.close()
    found = rows_by_outcome(tmp_path)
    assert found["lost"] == 10 * log.log.rollups_files.lost_count
    assert found == {"acked": 200 - found["lost"], "lost": found["lost"]}
    assert len(lives(tmp_path)) == 200 - log.log.lives_files.lost_count


def test_lines_of_which_nobody_knows_whether_they_are_on_the_disk_are_told_as_lost(tmp_path: Path) -> None:
    log = MadeLog(tmp_path)
    end(log, 4)
    log.passes()
    with refusing("write", "ftruncate"):
        log.passes(70)
    end(log, 2)
    log.passes(11)
    log.close()
    assert (log.log.lives_files.lost_count, log.log.rollups_files.lost_count) == (4, 1)
    assert rows_by_outcome(tmp_path) == {"acked": 2, "lost": 4}


def test_the_log_is_failing_for_as_long_as_the_disk_refuses_it_also_when_nothing_is_to_be_written(
    tmp_path: Path,
) -> None:
    log = MadeLog(tmp_path)
    end(log)
    with refusing("write", "ftruncate"):
        log.passes(70)
        log.passes(70)  # What is unknown is not written again: nothing is left.
        assert log.log.failing
        for _ in range(3):
            log.passes(11)
            assert log.log.failing
    log.passes(5)
    assert log.log.failing, "nobody has tried again"
    log.passes(6)
    assert not log.log.failing


def test_a_clock_that_is_set_back_holds_up_neither_flush_nor_retry_nor_retention(tmp_path: Path) -> None:
    log = MadeLog(tmp_path, bytes_max=16 * limits.MIB)
    log.passes(100)
    with refusing():
        end(log)
        log.close()
    log.step(-7_200)
    log.passes(11)
    assert (log.log.failing, log.log.lives_files.written_count) == (False, 1)
    end(log)
    log.passes(0.1)
    log.step(-7_200)
    log.passes(3)
    assert log.log.lives_files.written_count == 2, "flushed"
    (tmp_path / LIVES / "date=2025-01-01/hour=00").mkdir(parents=True)
    (tmp_path / LIVES / "date=2025-01-01/hour=00" / "other-000001.jsonl.gz").write_bytes(b"x" * 100)
    log.step(-7_200)
    log.passes(61)
    assert log.log.removed_count == 1
    log.passes(600)
    assert len(closed_files(tmp_path, LIVES)) == 1, "a file is closed by its age"


def test_a_directory_that_cannot_be_made_loses_events_that_are_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = MadeLog(tmp_path / "file")
    end(log, 4)
    with patch.object(limits, "EVENT_LOG_UNWRITTEN_BYTES_MAX", 0):
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
    log.log._lock.release()  # As when the process dies.
    assert len(lives(tmp_path)) == 2
    after = MadeLog(tmp_path, now_s=log.now_s + 100)
    after.close()
    assert after.log.recovered_count >= 1
    assert len(lives(tmp_path)) == 6


def test_a_file_that_cannot_be_recovered_leaves_no_room_taken_and_is_tried_again(tmp_path: Path) -> None:
    log = MadeLog(tmp_path)
    end(log, 3)
    log.passes()
    log.passes(3)  # Flushed.
    end(log)
    with refusing("write"):
        log.passes(3)
    with refusing("fsync"):
        log.passes(61)
    assert log.log.recovered_count == 0
    left = [path.name for path in open_files(tmp_path)]
    assert not [name for name in left if name.endswith(WORK_SUFFIX)]
    log.passes(61)
    log.close()
    assert open_files(tmp_path) == []
    assert len(lives(tmp_path)) == 4


def test_retention_goes_on_when_nothing_left_behind_can_be_looked_for(tmp_path: Path) -> None:
    log = MadeLog(tmp_path, days=1)
    end(log)
    log.close()
    log.now_s += 3 * 86_400
    with patch.object(Path, "glob", side_effect=OSError(errno.EIO, "Input/output error")):
        log.passes()
    assert closed_files(tmp_path, LIVES) == []
    assert log.log.removed_count == 2


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


def test_all_files_together_never_have_more_bytes_than_they_may_however_much_is_written(tmp_path: Path) -> None:
    bytes_max = 200_000
    log, chance = MadeLog(tmp_path, bytes_max=bytes_max), random.Random(1)
    sizes = []
    for turn in range(150):
        for _ in range(10):
            ready_ms, topic = BASE_MS + chance.randrange(10**9), log.topic(f"t{chance.randrange(10**6)}")
            times = {"wait_ms": chance.randrange(10**8), "processing_ms": chance.randrange(10**8)}
            log.end(topic, Outcome.ACKED, ready_ms=ready_ms, items_count=50, **times)
        log.passes(0.1 if turn % 2 else 3)  # Half of a minute or so in all.
        sizes.append(sum(path.stat().st_size for path in tmp_path.rglob("*.gz")))
    assert bytes_max / 2 < max(sizes) <= bytes_max
    assert log.log.removed_count > 3


def test_a_process_touches_no_directory_that_another_one_uses_and_its_lines_wait_for_the_end_of_that(
    tmp_path: Path,
) -> None:
    first, second = MadeLog(tmp_path), MadeLog(tmp_path, bytes_max=16 * limits.MIB)
    end(first, 2)
    first.close()
    end(first, 3)
    first.passes()
    first.passes(3)  # Flushed: the second one would recover this file.
    there = [*closed_files(tmp_path, LIVES), *open_files(tmp_path)]
    end(second, 4)
    with capture_logs() as logs, patch.object(second.log, "_retained_bytes_max", 0):
        for _ in range(3):
            second.passes(61)
    (failing,) = [entry for entry in logs if entry["event"] == "event_log_failing"]
    assert f"each host needs an event_log_dir of its own: '{tmp_path}'" in failing["error"]
    assert [*closed_files(tmp_path, LIVES), *open_files(tmp_path)] == there
    assert (second.log.failing, second.log.lives_files.waiting_count) == (True, 4)
    first.close()
    first.log._lock.release()  # The first process ends.
    second.passes(11)
    second.close()
    assert (second.log.failing, second.log.lives_files.lost_count) == (False, 0)
    assert len(lives(tmp_path)) == 2 + 3 + 4
    assert rows_by_outcome(tmp_path) == {"acked": 9}


def test_files_of_another_host_stay_as_they_are(tmp_path: Path) -> None:
    other = MadeLog(tmp_path, host_name="queue-2:7600")
    end(other, 2)
    other.passes()
    other.passes(3)  # Flushed.
    other.log._lock.release()  # It is killed, and its directory becomes that of a host with another name.
    left = open_files(tmp_path)
    log = MadeLog(tmp_path, now_s=other.now_s + 7_200)
    end(log)
    log.close()
    assert (open_files(tmp_path), log.log.recovered_count) == (left, 0)
    (of_lives,) = [path for path in left if f"/{LIVES}/" in str(path)]
    assert len(list(FileLines(io.BytesIO(of_lives.read_bytes())))) == 1, "and a reader has what was flushed"


async def test_a_stopped_log_leaves_its_directory_to_the_next_process(tmp_path: Path) -> None:
    first, second = MadeLog(tmp_path), MadeLog(tmp_path)
    for log in (first, second):
        await log.log.start()
        end(log)
        await log.log.drain()
        await log.log.stop()
        assert not log.log.failing
    assert len(lives(tmp_path)) == 2


async def test_a_disk_that_hangs_holds_up_nobody_and_what_does_not_fit_is_counted(tmp_path: Path) -> None:
    log = MadeLog(tmp_path)
    hangs, goes_on, write = threading.Event(), threading.Event(), os.write

    def hang(fd: int, data: bytes) -> int:
        hangs.set()
        assert goes_on.wait(PATIENCE_S)
        return write(fd, data)

    with patch.object(files.os, "write", hang), patch.object(limits, "EVENT_LOG_WAITING_MAX", 100):
        await log.log.start()
        end(log, 10)
        log.log._flushed = threading.Event()  # As a drain asks: all is to be on the disk.
        log.log._wake.set()
        assert hangs.wait(PATIENCE_S), "the thread writes"
        for _ in range(50):
            end(log, 7)  # Of the event loop: it returns at once, whatever the thread does.
        assert (log.log.waiting_count, log.log.lost_items_count) == (98, 252)
        goes_on.set()
        await log.log.drain()
        await log.log.stop()
    assert len(lives(tmp_path)) == 10 + 98
    lost = [row["count"] for row in rollups(tmp_path) if row["outcome"] == "lost"]
    assert sum(lost) == log.log.lost_items_count == 252


def test_all_lines_before_a_byte_that_makes_no_sense_are_read() -> None:
    wanted = [b"line %d of a block" % number for number in range(5_000)]
    compressor = zlib.compressobj(1, zlib.DEFLATED, 31)
    content = compressor.compress(b"\n".join(wanted) + b"\n") + compressor.flush(zlib.Z_SYNC_FLUSH)
    lines = FileLines(io.BytesIO(content + b"\xff" * 50))  # No block begins so.
    assert list(lines) == wanted
    assert lines.is_torn


def test_files_in_several_parts_are_read_as_one_and_a_cut_end_is_noted() -> None:
    content = gzip.compress(b"a\nb\n") + gzip.compress(b"c\n" * 100_000)
    lines = FileLines(io.BytesIO(content))
    assert (sum(1 for _ in lines), lines.is_torn) == (100_002, False)
    cut = FileLines(io.BytesIO(content[:-9]))
    assert sum(1 for _ in cut) >= 2
    assert cut.is_torn
    assert list(FileLines(io.BytesIO())) == []
