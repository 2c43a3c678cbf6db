"""What holds for all tests of real hosts."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import structlog

from tests.support.databases import Databases
from tests.support.running_host import RunningHost
from tests.support.shared_host import SharedHost


@pytest.fixture(autouse=True)
def _log_beside_commands() -> None:
    """Log on the stderr of the process: many hosts run in the process of the commands whose stdout is read."""
    structlog.reset_defaults()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def _shared_host(databases_of_session: Databases) -> AsyncIterator[SharedHost]:
    shared = SharedHost(databases_of_session)
    yield shared
    await shared.stop()
    SharedHost.current = None


@pytest_asyncio.fixture(loop_scope="module")
async def host(_shared_host: SharedHost) -> AsyncIterator[RunningHost]:
    """A host of four shards with the namespace `jobs` alone; files that use it have the mark of its loop."""
    async with _shared_host.running() as running:
        yield running


@pytest.fixture
def _wiped_databases(databases_of_session: Databases) -> Databases:
    if SharedHost.current is not None:
        SharedHost.current.stop_before_a_wipe()
    databases_of_session.wipe()
    return databases_of_session
