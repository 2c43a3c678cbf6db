"""Two hosts whose secret is replaced under load: no call of a client fails, though none is repeated."""

from __future__ import annotations

import pytest

from loadtest.stress import rotation

pytestmark = [pytest.mark.database, pytest.mark.slow]


def test_the_secret_is_replaced_again_and_again_and_no_call_fails() -> None:
    verdict = rotation.run(rotation.Course(shards=2, rotations=3))
    assert len({row["secret"] for row in verdict.rows}) == 4
    assert verdict.facts["items delivered"] > 0
    # How long a call was held is measured by `make rotation`, where nothing else runs.
    assert [bound for bound in verdict.broken if not bound.what.startswith("longest")] == [], verdict.facts
