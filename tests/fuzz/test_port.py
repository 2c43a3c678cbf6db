"""Mutated frames at a live port: the server answers or closes, serves on, and the fuzzer sees it when it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from foqs.transport.verb_table import Answered, Verbs
from loadtest.fuzz import port
from loadtest.fuzz.corpus import NAMESPACE
from loadtest.fuzz.port import Findings
from tests.support.front_door import World, world
from tests.support.loops import on_uvloop


async def fuzz(w: World, frames: int, seed: int) -> Findings:
    async def look() -> tuple[float, float]:
        return 0.0, 0.0

    with capture_logs():
        return await port.fuzz(w.server.port, frames, seed, look=look, batch_frames=500)


@on_uvloop
async def test_a_server_answers_or_closes_and_serves_on() -> None:
    async with world() as w:
        assert NAMESPACE in w.queue.namespaces
        findings = await fuzz(w, 1_500, seed=5)
        assert findings.defects == []
        assert findings.frames >= 1_500
        answers = {"OK", "closed", "unknown method", "told to use frames", "INVALID_ARGUMENT", "UNKNOWN_NAMESPACE"}
        assert answers <= set(findings.answers)


@on_uvloop
async def test_a_defect_behind_a_verb_is_found() -> None:
    async with world() as w:
        w.queue.failure = ZeroDivisionError("unforeseen")
        findings = await fuzz(w, 500, seed=6)
        assert any("INTERNAL" in defect for defect in findings.defects)


@on_uvloop
async def test_a_server_that_no_longer_serves_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer_nothing(
        self: Verbs,
        context: object,
        method: object,
        request: object,
        seqid: int,
        ended: Callable[[Answered | None], object],
    ) -> None:
        ended(Answered(b"", "OK"))

    monkeypatch.setattr(port, "ANSWER_S_MAX", 0.5)
    monkeypatch.setattr(Verbs, "serve", answer_nothing)

    async with world() as w:
        findings = await fuzz(w, 200, seed=7)
        assert any("does not serve" in defect for defect in findings.defects)
