"""The stored failures of an item, and the reasons that consumers give."""

from __future__ import annotations

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from foqs.model import limits
from foqs.model.calls import ItemFailure, ItemState, StoredItem
from foqs.model.failures import (
    DEATH_REASON_BYTES_MAX,
    FAILURES_SHOWN_MAX,
    REASON_BYTES_MAX,
    clean_reason,
    cut,
    death_reason,
    entry,
    failures_of,
    with_entry,
)
from foqs.wire.codec import METHODS, Codec, structs

TEXTS = st.text(st.characters(exclude_categories=()), max_size=700)
"""Surrogates and control characters are among them."""


@given(st.one_of(TEXTS, st.binary(max_size=700)))
def test_any_reason_becomes_one_line_of_utf8_within_its_bytes(given_reason: str | bytes) -> None:
    reason = clean_reason(given_reason)
    assert len(reason.encode()) <= REASON_BYTES_MAX
    assert not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 or char in "\u2028\u2029" for char in reason)
    assert reason == reason.strip()
    assert clean_reason(reason) == reason


@given(TEXTS)
def test_a_text_within_the_bound_is_kept_but_for_characters_that_steer_a_terminal(text: str) -> None:
    plain = "".join(char for char in text if char.isprintable() and not "\ud800" <= char <= "\udfff").strip()
    if len(plain.encode()) <= REASON_BYTES_MAX:
        assert clean_reason(plain) == plain


@given(st.text(st.sampled_from("aé€😀"), max_size=300), st.integers(0, 20))
def test_a_cut_keeps_whole_characters_alone_and_as_many_as_fit(text: str, bytes_max: int) -> None:
    kept = cut(text.encode(), bytes_max).decode()
    assert text.startswith(kept)
    assert len(kept.encode()) <= bytes_max
    if kept != text:
        assert len(text[: len(kept) + 1].encode()) > bytes_max


def test_hostile_reasons_are_made_harmless() -> None:
    assert clean_reason("\x1b[31mred\x1b[0m\r\nnext\x9b2J") == "[31mred [0m  next 2J"
    assert clean_reason(b"caf\xc3") == "caf\N{REPLACEMENT CHARACTER}"
    assert clean_reason("\ud83d half of a pair") == "? half of a pair"
    assert clean_reason("it's '); DROP TABLE item; --") == "it's '); DROP TABLE item; --"
    assert clean_reason("x" * 1_000_000) == "x" * REASON_BYTES_MAX
    assert clean_reason(b"\xff" * 1_000_000) == "\N{REPLACEMENT CHARACTER}" * (REASON_BYTES_MAX // 3)
    assert clean_reason(b"\x80" * 1_000_000).startswith("\N{REPLACEMENT CHARACTER}")
    assert [clean_reason(empty) for empty in (None, "", b"", " \n\t", "\x00")] == [""] * 5


FAILURES = st.lists(st.tuples(st.integers(0, 2**48), st.integers(1, 2**31), st.text(max_size=80)), max_size=40)


@given(FAILURES)
def test_stored_failures_are_the_last_ones_in_order_whatever_is_cut(failures: list[tuple[int, int, str]]) -> None:
    stored, oracle = b"", list[ItemFailure]()
    for at_ms, attempt, text in failures:
        reason = clean_reason(text)
        stored = with_entry(entry(at_ms, attempt, reason), stored)
        oracle.insert(0, ItemFailure(at_ms, attempt, reason))
    assert len(stored) <= limits.ERRORS_BYTES_DEFAULT
    shown = failures_of(stored)
    assert shown == oracle[: len(shown)]
    # Only what does not fit as a whole is missing.
    fitting, size_bytes = 0, 0
    for one in oracle:
        size_bytes += len(entry(one.at_ms, one.attempt, one.reason))
        fitting += size_bytes <= limits.ERRORS_BYTES_DEFAULT
    assert len(shown) == min(fitting, FAILURES_SHOWN_MAX)
    assert failures_of(stored, 1) == shown[:1]


@given(st.binary(max_size=limits.ERRORS_BYTES_DEFAULT))
def test_any_bytes_are_read_without_an_error(stored: bytes) -> None:
    assert len(failures_of(stored)) <= FAILURES_SHOWN_MAX


def test_an_entry_of_a_later_version_is_passed_over() -> None:
    later = b"\x09\x00\x04abcd"
    stored = with_entry(entry(7, 2, "new"), with_entry(later, entry(5, 1, "old")))
    assert failures_of(stored) == [ItemFailure(7, 2, "new"), ItemFailure(5, 1, "old")]


def test_a_stored_entry_has_the_bytes_of_its_version() -> None:
    assert entry(1_700_000_000_000, 3, "é").hex() == "01000e" + "0000018bcfe56800" + "00000003" + "c3a9"


def test_the_largest_page_with_the_last_failure_of_each_item_is_a_frame_that_peers_and_clients_read() -> None:
    failure = structs.ItemFailure(1, 2, "x" * REASON_BYTES_MAX)
    texts = {field.name: "x" for field in fields(StoredItem) if field.type == "str | None"}
    item = structs.StoredItem(
        "1-1", "t", ItemState.DEAD, 1, b"", b"", 1, 1, 1, 1, 0, 1, 1, lease_ms=1, errors=[failure], **texts
    )
    items = [item] * limits.PAGE_ITEMS_MAX
    codec = Codec()
    frame = codec.encode_reply(METHODS["exportItems"], structs.ExportItemsResponse(items, 7), 1)
    assert len(codec.decode_reply(frame[4:]).response.items) == limits.PAGE_ITEMS_MAX


def test_the_reason_of_death_has_the_cause_first_and_fits_its_column() -> None:
    assert death_reason("nacked", "") == b"nacked"
    assert death_reason("nacked", "ValueError: bad card") == b"nacked: ValueError: bad card"
    long = death_reason("nacked", "é" * 250)
    assert len(long) <= DEATH_REASON_BYTES_MAX
    assert long.decode().startswith("nacked: é")
