"""Fixtures of the unit tests."""

from collections.abc import Iterator

import pytest

from foqs.testing import MemoryQueue


@pytest.fixture
def queue() -> Iterator[MemoryQueue]:
    with MemoryQueue() as queue:
        yield queue
