from __future__ import annotations

from typing import Any

import pytest

from foqs.client.addresses import COOLDOWN_MS, COOLDOWN_MS_MAX, Address, AddressBook, parse_addresses
from foqs.client.client_options import Options
from foqs.model.errors import InvalidArgumentError

A, B, C = Address("a", 1), Address("b", 2), Address("c", 3)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host:7601", Address("host", 7601)),
        ("host", Address("host", 7600)),
        ("[::1]:7601", Address("::1", 7601)),
        ("[::1]", Address("::1", 7600)),
    ],
)
def test_addresses_are_read_in_their_usual_forms(text: str, address: Address) -> None:
    assert parse_addresses(text) == [address]
    assert parse_addresses([text, " " + text]) == parse_addresses(f"{text}, {text},") == [address] * 2
    assert parse_addresses(str(address)) == [address]


@pytest.mark.parametrize(
    "text", ["", ":7600", "host:0", "host:65536", "host:x", "::1:7600", "[::1]x", "[::1", "a..b:7600", "x" * 64]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_addresses(text)


def test_connections_are_spread_over_the_addresses_in_turn() -> None:
    index = AddressBook([A, B, C], first=1)
    assert index.candidates(0) == [B, C, A]
    assert index.candidates(0) == [C, A, B]
    assert index.candidates(0) == [A, B, C]


def test_an_address_that_failed_comes_last_for_a_while() -> None:
    index = AddressBook([A, B, C], first=0)
    index.failed(A, now_ms=0)
    assert index.candidates(COOLDOWN_MS - 1) == [B, C, A]
    index.candidates(0)
    index.candidates(0)
    assert index.candidates(COOLDOWN_MS) == [A, B, C]


def test_the_longer_an_address_fails_the_longer_it_comes_last_up_to_a_bound() -> None:
    index, now_ms, cooled_ms = AddressBook([A, B], first=0), 0, []
    for _ in range(8):
        index.failed(A, now_ms)
        index.failed(A, now_ms)  # Of another call, at the same time: it does not count twice.
        start_ms = now_ms
        while index.preferred(now_ms) == [B]:
            now_ms += 500
        cooled_ms.append(now_ms - start_ms)
    assert cooled_ms == [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]
    assert cooled_ms[0] == COOLDOWN_MS
    assert cooled_ms[-1] == COOLDOWN_MS_MAX
    index.served(A)
    index.failed(A, now_ms)
    assert index.preferred(now_ms + COOLDOWN_MS) == [A, B]


def test_what_is_avoided_is_no_candidate_and_all_that_fail_are_as_good_as_each_other() -> None:
    index = AddressBook([A, B], first=0)
    assert index.candidates(0, [A]) == [B]
    assert index.preferred(0, [A]) == [B]
    assert index.has_other([A])
    assert not index.has_other([A, B])
    index.failed(A, 0)
    index.failed(B, 0)
    assert index.preferred(0) == [A, B]


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout_ms": 0},
        {"timeout_ms": "x"},
        {"timeout_ms": 1.5},
        {"connect_timeout_ms": 0},
        {"connections_max": 0},
        {"batch_items_max": 1_001},
        {"retry": 5},
    ],
)
def test_options_out_of_range_or_of_a_wrong_type_are_refused_by_name(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(InvalidArgumentError, match=name):
        Options(**wrong)


def test_an_address_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="host:port"):
        parse_addresses([("host", 1)])  # type: ignore[list-item]
