"""Tests on the event loop that a host has."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

Test = Callable[..., Coroutine[Any, Any, None]]


def run(main: Test, loop_factory: Any = uvloop.new_event_loop) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


def on_uvloop(test: Test) -> Callable[..., None]:
    @functools.wraps(test)
    def run_test(**fixtures: Any) -> None:
        run(functools.partial(test, **fixtures))

    return run_test


def on_each_loop(test: Test) -> Any:
    """Runs a test on uvloop's, and on the one that Python has."""

    @functools.wraps(test)
    def run_test(loop_factory: Any, **fixtures: Any) -> None:
        run(functools.partial(test, **fixtures), loop_factory)

    names = ["loop_factory", *inspect.signature(test).parameters]
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    run_test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])(run_test)
