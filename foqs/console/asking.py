"""Calls of a page side by side: each within its time, and a page without the parts that could not be had."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Final, TypeVar

from foqs.model.errors import FoqsError

PART_S_MAX: Final = 2.0
"""The longest wait of a page for one of its parts, in seconds."""
T = TypeVar("T")


async def part(call: Awaitable[T], wait_s: float = PART_S_MAX) -> T | str:
    """Return the result of a call, or the reason in words why it cannot be shown."""
    try:
        return await asyncio.wait_for(call, wait_s)
    except TimeoutError:
        return f"no answer within {wait_s:g} s"
    except FoqsError as error:
        return error.message


async def first_rows(rows: AsyncIterator[T], count: int, wait_s: float = PART_S_MAX / 2) -> tuple[list[T], bool]:
    """Return up to `count` rows that come in time, and True if these are not all."""
    found: list[T] = []
    try:
        async with asyncio.timeout(wait_s):
            async for row in rows:
                if len(found) >= count:
                    return found, True
                found.append(row)
    except TimeoutError:
        return found, True
    return found, False
