"""Names that others made up steer no terminal, and do not disguise the output of a command or the log of a host."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator

import pytest
import structlog

from foqs.cli import audit_commands
from foqs.cli.output import Output, note
from foqs.cli.tables import table_lines
from foqs.logs import configure_logs
from foqs.model.audit import AuditRecord
from foqs.model.shown_text import escaped, escaped_json, one_line, some_lines

CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))]
BIDI = [chr(code) for code in (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))]
ENDS = ["\u2028", "\u2029"]
HOSTILE = [*CONTROLS, *BIDI, *ENDS]
NAME = "orders" + "".join(HOSTILE) + "sredro"


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def unsafe_in(text: str, but: str = "") -> list[str]:
    return [repr(char) for char in text if char in HOSTILE and char not in but]


def test_the_unsafe_characters_are_all_controls_and_all_that_turn_the_direction() -> None:
    """By the database of Unicode: explicit directions, marks, controls and line ends."""
    turning = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    for code in range(0x110000):
        char = chr(code)
        is_unsafe = (
            unicodedata.category(char) in ("Cc", "Zl", "Zp")
            or unicodedata.bidirectional(char) in turning
            or char in "\u061c\u200e\u200f"
        )
        if is_unsafe or code < 0x3000:
            assert (one_line(f"a{char}b") == "a\N{REPLACEMENT CHARACTER}b") is is_unsafe, hex(code)


@pytest.mark.parametrize("width", [None, 4, 400])
def test_no_table_has_an_unsafe_character(width: int | None) -> None:
    lines = list(table_lines(["A", "B"], [(NAME, NAME), (NAME.encode(), "x")], width, is_last_cut=width == 400))
    assert [unsafe_in(line, but="\t") for line in lines] == [[]] * len(lines)
    assert len(lines) == (5 if width == 4 else 3)


def test_no_line_message_or_document_has_an_unsafe_character_and_json_keeps_the_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for as_json in (False, True):
        output = Output(as_json=as_json)
        output.line(NAME)
        output.json_line({"name": NAME, NAME: NAME.encode()})
        output.document([NAME])
        note(f"error: {NAME}")
        out, err = capsys.readouterr()
        assert unsafe_in(out + err, but="\n") == []
        if as_json:
            line, _, document = out.partition("\n")
            assert json.loads(line)["name"] == json.loads(line)[NAME] == NAME
            assert json.loads(document) == [NAME]
        else:
            assert out.count("\n") == 1


def test_a_namespace_that_a_refused_caller_made_up_does_not_steer_the_terminal_of_who_follows_the_audit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = AuditRecord(1, "h", 1, "r", NAME, NAME, NAME, "dequeue", NAME, NAME, NAME, NAME)
    Output(as_json=False).line("  ".join(str(value) for value in audit_commands._row(record) if value))
    assert unsafe_in(capsys.readouterr().out[:-1]) == []


@pytest.mark.parametrize("style", ["console", "json"])
def test_no_line_of_the_log_has_an_unsafe_character(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", style)
    log = structlog.get_logger()
    log.info("audit", namespace_name=NAME.replace("\n", ""), listed=[NAME], at=1)
    log.info(NAME.replace("\n", ""))
    try:
        raise ValueError(NAME.replace("\n", ""))
    except ValueError:
        log.exception("failed")
    out = capsys.readouterr().out
    assert unsafe_in(out, but="\n") == []
    assert "orders" in out


@pytest.mark.parametrize(
    ("text", "line", "lines", "escapes"),
    [
        ("plain", "plain", "plain", "plain"),
        ("snow\N{SNOWMAN} \U0001f468\u200d\U0001f469", *["snow\N{SNOWMAN} \U0001f468\u200d\U0001f469"] * 3),
        ("a\nb\x1b[2J", "a�b�[2J", "a\nb�[2J", "a\nb\\x1b[2J"),
        ("a\u202eb\x9bc", "a�b�c", "a�b�c", "a\\u202eb\\x9bc"),
    ],
)
def test_what_is_harmless_stays_as_it_is(text: str, line: str, lines: str, escapes: str) -> None:
    assert (one_line(text), some_lines(text), escaped(text)) == (line, lines, escapes)
    assert json.loads(escaped_json(json.dumps(text, ensure_ascii=False))) == text
