"""Validation of arguments before anything is sent.

The encoder would accept wrong values silently: it truncates 1.9 to 1, and accepts any text as True and bytes as text.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import cache
from typing import Any, SupportsIndex, cast

from thriftpy2.thrift import TType

from foqs.model.errors import InvalidArgumentError, shown
from foqs.model.holder import consumer_fault

_BITS = {TType.I16: 16, TType.I32: 32, TType.I64: 64}
_CHECKED_APART = frozenset({"NewItem", "Nack", "TopicPolicyChange"})
"""Members of batches. They are checked one by one, because an invalid one must not fail the others."""

Check = Callable[[str, Any], None]


def is_whole(value: object) -> bool:
    """True for an int or an integer type such as numpy's, but not for a bool."""
    return isinstance(value, SupportsIndex) and not isinstance(value, bool)


def check_whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """Raise InvalidArgumentError unless `value` is a whole number within least..most (None: no upper bound)."""
    if isinstance(value, int) and is_whole(value) and least <= value and (most is None or value <= most):
        return
    bounds = f"of {least} or more" if most is None else f"within {least}..{most}"
    raise InvalidArgumentError(f"{name} {shown(value)} is not a whole number {bounds}")


def check_text(name: str, value: object) -> None:
    """Raise InvalidArgumentError unless `value` is text."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name} {shown(value)} is {type(value).__name__}, not str")


def check_consumer(name: object) -> None:
    """Raise InvalidArgumentError for a value that is neither None nor the name of a consumer."""
    if name is not None and (fault := consumer_fault(name)):
        raise fault


def check_flag(name: str, value: object) -> None:
    """Raise InvalidArgumentError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{name} {shown(value)} is {type(value).__name__}: give True or False")


def check_target(namespace: object, job_id: object, *, retry_unknown: object) -> None:
    """Raise InvalidArgumentError for an invalid target of items, before it is used as a key."""
    check_text("namespace", namespace)
    if job_id is not None:
        check_text("job_id", job_id)
    check_flag("retry_unknown", retry_unknown)


def check_many(name: str, value: object, of_what: str) -> None:
    """Raise InvalidArgumentError for a value that is not iterable, and for text and bytes."""
    if isinstance(value, str | bytes | bytearray | memoryview) or not isinstance(value, Iterable):
        raise InvalidArgumentError(f"{name} is {type(value).__name__}: give a list, or another iterable, of {of_what}")


def check_request(request: Any) -> None:
    """Raise InvalidArgumentError for a value in a request that has another type than in the contract.

    The host judges missing values.
    """
    for name, check in _checks_of(cast(Hashable, type(request))):
        value = getattr(request, name)
        if value is not None:
            check("namespace" if name == "namespace_name" else name, value)


@cache
def _checks_of(struct: Hashable) -> list[tuple[str, Check]]:
    found = [(spec[1], _check_of(spec[0], spec[2])) for spec in struct.thrift_spec.values()]  # type: ignore[attr-defined]
    return [(name, check) for name, check in found if check is not None]


def _check_of(kind: int, detail: Any) -> Check | None:
    """Return the check of a field, or None for no check. `detail` is the struct or the element type."""
    if kind in _BITS:
        most = 2 ** (_BITS[kind] - 1) - 1
        return lambda name, value: _check_integer(name, value, most)
    if kind == TType.STRUCT:
        return None if detail.__name__ in _CHECKED_APART else lambda _, value: check_request(value)
    if kind == TType.LIST:
        return _check_of_list(*detail) if isinstance(detail, tuple) else _check_of_list(detail, None)
    return {TType.BOOL: check_flag, TType.DOUBLE: _check_number, TType.STRING: check_text}.get(kind)


def _check_of_list(kind: int, detail: Any) -> Check | None:
    check = _check_of(kind, detail)
    if check is None:
        return None

    def check_each(name: str, values: Any) -> None:
        if kind != TType.STRING or set(map(type, values)) - {str}:
            for value in values:
                check(f"one of {name}", value)

    return check_each


def _check_integer(name: str, value: object, most: int) -> None:
    if type(value) is int and -most <= value <= most:
        return
    if not is_whole(value) or not -most - 1 <= value <= most:  # type: ignore[operator]
        raise InvalidArgumentError(f"{name} {shown(value)} is not a whole number within {-most - 1}..{most}")


def _check_number(name: str, value: object) -> None:
    if not (isinstance(value, float) or is_whole(value)):
        raise InvalidArgumentError(f"{name} {shown(value)} is {type(value).__name__}, not a number")
