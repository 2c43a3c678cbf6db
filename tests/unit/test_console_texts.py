"""Texts of others on pages of the console: payloads, errors, command lines."""

from __future__ import annotations

import shlex

from foqs.console.asked import topic_url
from foqs.console.command_lines import command
from foqs.console.item_rows import SHOWN_BYTES_MAX, contents
from foqs.console.offers import line
from foqs.console.texts import age, per_second, short, size


def forms_of(data: bytes) -> dict[str, str]:
    return {key: text for key, _, text in contents(data)}


def test_a_payload_is_shown_in_the_forms_that_it_has() -> None:
    assert list(forms_of(b'{"a": 1}')) == ["json", "text", "hex"]
    assert list(forms_of(b"plain \xc3\xa4")) == ["text", "hex"]
    assert list(forms_of(b"\xff\x00")) == ["hex"]
    assert forms_of(b"a\x1b\xe2\x80\xae\n")["text"] == "a\\x1b\\u202e\n"
    assert forms_of(b"AB\x00\xff")["hex"] == "000000  41 42 00 ff                                      AB.."
    assert list(forms_of(b"[" * 60_000)) == ["text", "hex"], "it is too deep for JSON"


def test_of_a_long_payload_the_first_64_kib_are_shown() -> None:
    text = forms_of("ж".encode() * SHOWN_BYTES_MAX)["text"]
    assert len(text.encode()) == SHOWN_BYTES_MAX
    cut = forms_of(b"x" + "ж".encode() * SHOWN_BYTES_MAX)["text"]
    assert cut == "x" + "ж" * (SHOWN_BYTES_MAX // 2 - 1), "half a character is left out"


def test_command_lines_are_read_by_a_shell_as_they_were_meant() -> None:
    hostile = ["$(rm -rf /)", "a'b\"c", "", "--all", "x;y", "\u202e"]
    words = shlex.split(command("foqs", *hostile))
    assert words == ["foqs", *[word for word in hostile if word]]
    assert line(["topic", "pause"], ["shop", "-x"], ["--group", "g"]) == "foqs topic pause --group g -- shop -x"


def test_urls_of_topics_lead_back_to_their_names() -> None:
    assert topic_url("shop", "a b&c") == "/ns/shop/topic/a%20b%26c"
    for name in (".", "..", "a/b", "a\\b", "x.json"):
        assert topic_url("shop", name).startswith("/ns/shop/topic?name="), name


def test_numbers_are_short() -> None:
    assert [per_second(value) for value in (0, 0.04, 0.05, 9.94, 9.96, 1234.5)] == [
        "0",
        "0",
        "0.1",
        "9.9",
        "10",
        "1,234",
    ]
    assert [age(seconds * 1_000) for seconds in (0, 59, 60, 3_599, 3_600, 172_799, 172_800)] == [
        "0 s", "59 s", "1 min", "59 min", "1 h", "47 h", "2 d"
    ]  # fmt: skip
    assert [size(count) for count in (0, 10_239, 10_240)] == ["0 B", "10,239 B", "10 KiB"]
    assert len(short("x" * 1_000)) == 301
