"""A fixture for pytest: put `pytest_plugins = ["foqs.testing.plugin"]` into the conftest.py beside your tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foqs.testing import MemoryQueue


@pytest.fixture
def foqs_queue() -> Iterator[MemoryQueue]:
    """A MemoryQueue of the test's own, with the namespace `default`."""
    with MemoryQueue() as queue:
        yield queue
