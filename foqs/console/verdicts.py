"""The answers of `explain` as pages show them."""

from __future__ import annotations

from typing import Any, Final

from foqs.console.texts import age
from foqs.model.reasons import Explanation, Reason, ReasonCode, Verdict

_TONES: Final = {
    Verdict.MOVING: "ok",
    Verdict.EMPTY: "ok",
    Verdict.SLOW: "warn",
    Verdict.STOPPED: "bad",
    Verdict.UNEXPLAINED: "bad",
    Verdict.GONE: "warn",
}
REMEDIES_MAX: Final = 4


def shown_verdict(explanation: Explanation | str, now_ms: int) -> dict[str, Any]:
    """Return the parts of a verdict; for a text, the reason why it is not known."""
    if isinstance(explanation, str):
        return {"look": "warn", "summary": f"Not explained: {explanation}", "reasons": [], "remedies": [], "age": "",
                "ahead": None, "wait": "", "missing": []}  # fmt: skip
    remedies = dict.fromkeys(one.remedy for one in explanation.reasons if one.remedy)
    known = explanation.verdict in Verdict._value2member_map_
    return {
        "look": _TONES[Verdict(explanation.verdict)] if known else "warn",
        "summary": explanation.summary,
        "reasons": [_shown_reason(one, now_ms) for one in explanation.reasons],
        "remedies": list(remedies)[:REMEDIES_MAX],
        "age": age(max(0, now_ms - explanation.as_of_ms)) if explanation.as_of_ms else "",
        "ahead": explanation,
        "wait": age(explanation.expected_wait_ms) if explanation.expected_wait_ms else "",
        "missing": explanation.missing,
    }


def _shown_reason(one: Reason, now_ms: int) -> dict[str, Any]:
    code = one.code
    ends = f"for {age(one.until_ms - now_ms)}" if one.until_ms > now_ms else ""
    return {
        "code": ReasonCode(code).name if code in ReasonCode._value2member_map_ else str(code),
        "text": one.text,
        "ends": ends,
        "topic": one.topic,
    }
