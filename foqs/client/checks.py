"""The one check that settings of clients and workers share."""

from __future__ import annotations

from foqs.model.errors import InvalidArgumentError


def check_whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """Raise InvalidArgumentError unless `value` is a whole number within least..most (None: no upper bound)."""
    if isinstance(value, int) and least <= value and (most is None or value <= most):
        return
    bounds = f"of {least} or more" if most is None else f"within {least}..{most}"
    raise InvalidArgumentError(f"{name} {value!r} is not a whole number {bounds}")
