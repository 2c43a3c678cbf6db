"""A Secret shows its value to nobody who does not ask for it by name."""

from __future__ import annotations

import copy
import json
import pickle
import traceback
from dataclasses import dataclass

import pytest

from foqs.model.secret import Secret

VALUE = b"planted-Xq7"


@dataclass
class _Holder:
    secret: Secret


@pytest.mark.parametrize(
    "shown",
    [
        repr, str, "{}".format, "{:>40}".format, "{!r}".format, "{!s}".format, lambda secret: f"{secret}",
        lambda secret: f"{secret!s} {secret!r}", lambda secret: repr([secret, {"k": secret}]),
        lambda secret: repr(_Holder(secret)), lambda secret: json.dumps(secret, default=str),
    ],
)  # fmt: skip
def test_no_form_of_a_secret_shows_it(shown) -> None:  # type: ignore[no-untyped-def]
    text = shown(Secret(VALUE))
    assert "***" in text
    assert "planted" not in text


def test_a_traceback_with_local_values_does_not_show_it() -> None:
    secret = Secret(VALUE)
    try:
        assert not secret.reveal()
    except AssertionError as error:
        told = traceback.TracebackException.from_exception(error, capture_locals=True)
    assert "secret = ***" in "".join(told.format())


def test_it_is_revealed_to_who_asks() -> None:
    assert Secret(VALUE).reveal() == VALUE


def test_equal_secrets_are_equal_and_other_values_are_not() -> None:
    assert Secret(VALUE) == Secret(bytes(VALUE))
    assert Secret(VALUE) != Secret(b"planted-Xq8")
    assert Secret(VALUE) != Secret(b"")
    assert Secret(VALUE) != VALUE


@pytest.mark.parametrize("taken", [pickle.dumps, copy.copy, copy.deepcopy])
def test_it_is_not_pickled_or_copied(taken) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TypeError, match="not pickled") as refused:
        taken(Secret(VALUE))
    assert "planted" not in str(refused.value)


def test_it_has_no_hash_and_no_further_attributes() -> None:
    with pytest.raises(TypeError):
        hash(Secret(VALUE))
    with pytest.raises(TypeError):
        vars(Secret(VALUE))
