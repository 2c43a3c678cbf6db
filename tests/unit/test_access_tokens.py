"""Tokens: what a typing error does, and what is stored of them."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.model import access_tokens as tokens
from foqs.model.errors import InvalidArgumentError

CHANCE = st.binary(min_size=tokens.RANDOM_BYTES, max_size=tokens.RANDOM_BYTES)
ONE = tokens.new_token(bytes(range(tokens.RANDOM_BYTES)))


@given(CHANCE)
def test_a_token_is_read_back_as_it_was_made(chance: bytes) -> None:
    text = tokens.new_token(chance)
    assert len(text) == tokens.TOKEN_CHARS
    token = tokens.parse(text)
    assert token.secret == chance[:32]
    assert text.startswith(f"foqs_{token.id}_")
    assert tokens.text_of(token) == text


def test_the_text_and_the_hash_are_those_of_every_version() -> None:
    """Stored hashes and issued tokens outlive a version."""
    assert ONE == "foqs_eaqseizeeutc_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh80Q-OAQ"
    assert tokens.hash_of(tokens.parse(ONE)).hex() == "aebb2d420158d82d920ac494f153eda9eabacee7af6aa7293466233acc52fa80"


@pytest.mark.parametrize("at", range(len(ONE)))
def test_one_wrong_character_is_told_before_anything_is_sent(at: int) -> None:
    for other in string.ascii_letters + string.digits + "-_ é\n\0":
        if other != ONE[at]:
            with pytest.raises(InvalidArgumentError) as caught:
                tokens.parse(ONE[:at] + other + ONE[at + 1 :])
            assert ONE[20:50] not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "foqs_", ONE[:-1], ONE + "\n", " " + ONE, ONE.upper(), ONE.encode(), None, 7, "x" * 1_000_000]
)
def test_what_is_no_token_is_refused_without_repeating_it(text: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        tokens.parse(text)
    assert len(str(caught.value)) < 200


def test_a_secret_has_one_text_only() -> None:
    """The last character of the secret has two bits to spare, which a right checksum could hide."""
    body = ONE[: 5 + 12 + 1 + 42]
    accepted = 0
    for last in string.ascii_letters + string.digits + "-_":
        text = body + last + tokens.checksum(body + last)
        try:
            assert tokens.text_of(tokens.parse(text)) == text
            accepted += 1
        except InvalidArgumentError:
            pass
    assert accepted == 16, "six bits, of which four are the secret's"


@given(CHANCE, CHANCE)
def test_other_tokens_have_other_hashes(one: bytes, other: bytes) -> None:
    first, second = tokens.parse(tokens.new_token(one)), tokens.parse(tokens.new_token(other))
    assert (tokens.hash_of(first) == tokens.hash_of(second)) == (first == second)
    moved = tokens.Token(second.id, first.secret)
    assert (tokens.hash_of(moved) == tokens.hash_of(first)) == (moved == first), "the id is in the hash"


def test_the_secret_is_in_no_repr() -> None:
    token = tokens.parse(ONE)
    assert repr(token) == f"Token({token.id})"
    assert str(token) == f"Token({token.id})"
    assert f"{token}" == f"Token({token.id})"
