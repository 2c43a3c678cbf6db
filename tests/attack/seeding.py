"""Where defects of access, TLS and audit are planted, and how tests are held against them."""

from __future__ import annotations

import asyncio
import inspect
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

_EXAMPLES_MAX = 60

Check = Callable[[], object]
"""A test with all that it needs."""


class Defect(NamedTuple):
    plant: Callable[[], AbstractContextManager[Any]]
    """Gives a context in which the defect is there."""
    check: Check
    """It has to be red meanwhile."""


DEFECTS: dict[str, Defect] = {}
"""All defects by their names."""


def found_by(check: Check) -> Callable[[Callable[[], AbstractContextManager[Any]]], Any]:
    """What is decorated plants a defect that this check has to find."""

    def add(plant: Callable[[], AbstractContextManager[Any]]) -> Any:
        name = plant.__name__
        assert name not in DEFECTS, f"two defects are called {name}"
        DEFECTS[name] = Defect(plant, check)
        return plant

    return add


def in_place_of(target: Any, name: str, check: Check) -> Callable[[Callable[..., Any]], Any]:
    """What is decorated is a defect: it stands in place of the target's attribute."""

    def add(replacement: Any) -> Any:
        def plant() -> AbstractContextManager[Any]:
            return patch.object(target, name, replacement)

        plant.__name__ = replacement.__name__
        found_by(check)(plant)
        return replacement

    return add


def a_test(place: str, *given: Any, **named: Any) -> Check:
    """The test of this name, as MODULE:TEST, with these arguments."""

    def check() -> object:
        return test_at(place)(*given, **named)

    return check


def test_at(place: str) -> Callable[..., Any]:
    """The test of this name, as MODULE:TEST below tests."""
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(import_module(f"tests.{module}"), name)
    return found


test_at.__test__ = False  # type: ignore[attr-defined]


def with_tools(place: str, **tools: Callable[[Path], Any]) -> Check:
    """A test whose arguments are made of a directory of its own."""

    def check() -> object:
        with tempfile.TemporaryDirectory() as name:
            outcome = test_at(place)(**{key: tool(Path(name)) for key, tool in tools.items()})
            if inspect.isawaitable(outcome):
                asyncio.run(_awaited(outcome))
        return None

    return check


def patched(place: str, **given: Any) -> Check:
    """A test with pytest's monkeypatch."""

    def check() -> object:
        with pytest.MonkeyPatch.context() as patches:
            outcome = test_at(place)(monkeypatch=patches, **given)
            if inspect.isawaitable(outcome):
                asyncio.run(_awaited(outcome))
        return None

    return check


def in_memory(name: str) -> Check:
    """A test of what the meta database knows of access, with the one in memory."""

    def check() -> object:
        module = import_module("tests.contract.test_meta_access")
        return getattr(module, name)(module.memory_meta(lambda: module.NOW))

    return check


def of_audit(name: str, **given: Any) -> Check:
    """A test of the audit, with its world."""

    async def check() -> None:
        async with _world_of_audit() as world:
            await test_at(f"unit.test_audit:{name}")(world, **given)

    return check


@asynccontextmanager
async def _world_of_audit() -> AsyncIterator[Any]:
    world = import_module("tests.unit.test_audit").World()
    await world.audit.start()
    try:
        yield world
    finally:
        world.table.away = None
        await world.audit.stop()


def the_access_machine() -> None:
    """Principals, grants, tokens, modes, the clock and outages of meta, in any order, against an oracle."""
    machine = import_module("tests.attack.test_access_machine").AccessMachine
    quick = settings(
        max_examples=_EXAMPLES_MAX, stateful_step_count=25, phases=[Phase.generate], database=None, derandomize=True,
        deadline=None, report_multiple_bugs=False,
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=quick)


def run(check: Check) -> None:
    """Do what a test does, also if it is one of an event loop."""
    outcome = check()
    if inspect.isawaitable(outcome):
        asyncio.run(_awaited(outcome))


def is_red(check: Check) -> bool:
    """Whether the test says that something is wrong.

    Any other error is one of the defect itself, which does not fit the code any more, and is raised.
    """
    try:
        run(check)
    except (AssertionError, pytest.fail.Exception):
        return True
    except AttributeError as error:
        if error.obj is None:  # It looked at the error of a call that was done.
            return True
        raise
    return False


async def _awaited(outcome: Any) -> object:
    return await outcome


def changed(table: Mapping[str, Any], **fields: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """A context in which rows of a table have other values, by their names."""
    rows = {name: table[name]._replace(**values) for name, values in fields.items()}
    return patch.dict(table, rows)  # type: ignore[arg-type]
