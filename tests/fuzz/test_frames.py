"""Mutated messages through scan and decoder: none harms, and the fuzzer sees it when one does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.fuzz import frames, judge
from loadtest.fuzz.corpus import seed_answers, seed_messages
from loadtest.fuzz.judge import DefectError, Judge
from loadtest.fuzz.mutations import Mutator
from tests.support.waiting import PROGRAM_S_MAX


def test_mutated_messages_are_refused_or_decoded_and_do_no_harm() -> None:
    findings = frames.fuzz(20_000, seed=1, batch_frames=5_000)
    assert findings.defects == []
    assert findings.frames == sum(findings.outcomes.values()) == 20_000
    assert {"accepted", "unknown method", "closed: depth", "closed: elements", "closed: truncated"} <= set(
        findings.outcomes
    )


def test_the_fuzzer_finds_what_the_decoder_costs_without_the_scan() -> None:
    assert any("of the processor" in defect for defect in frames.fuzz(40, seed=9, batch_frames=20, scans=False).defects)


@pytest.mark.deep
def test_the_fuzzer_finds_what_the_decoder_does_without_the_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "HANG_S_MAX", 1.0)
    found = frames.fuzz(2_000, seed=2, scans=False).defects
    assert any(defect.startswith(("crash", "hang")) for defect in found)


def test_every_seed_is_taken_as_it_is() -> None:
    one = Judge()
    assert {one.judge(message, thoroughly=True).split(":")[0] for message in seed_messages()} <= {"accepted", "refused"}
    assert {one.judge(message) for message in seed_answers()} == {"answer: accepted"}


def test_a_defect_is_told_by_the_message_that_shows_it() -> None:
    seeds = seed_messages() + seed_answers()
    mutator = Mutator((3, 4), seeds)
    messages = [mutator.message() for _ in range(50)]
    assert frames.message_of(3, 4, 49) == messages[49]
    assert len(set(messages)) > 40


def test_a_decoder_that_gives_more_than_it_got_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    one, message = Judge(), seed_messages()[0]
    request = one._take(message)[2]
    request.items[0].payload = bytes(len(message))
    monkeypatch.setattr(one, "_take", lambda data: ("accepted", None, request))
    with pytest.raises(DefectError, match="came out of a message"):
        one.judge(message)


def test_an_error_that_nobody_expects_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(request: object) -> None:
        raise KeyError("unforeseen")

    monkeypatch.setattr(judge, "check_arguments", fail)
    with pytest.raises(DefectError, match="unforeseen"):
        Judge().judge(seed_messages()[0])


def test_the_coverage_guided_fuzzer_runs_and_finds_nothing() -> None:
    pytest.importorskip("atheris", reason="the extra `fuzz` is not installed")
    found = subprocess.run(
        [sys.executable, "-m", "loadtest.fuzz.frames", "--guided", "--frames", "5000", "--seed", "7"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=PROGRAM_S_MAX,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-2_000:]
    assert "Done 5000 runs" in found.stderr
