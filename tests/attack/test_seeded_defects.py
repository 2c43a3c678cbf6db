"""Each defect of access, TLS, audit and policies that is planted turns a test red, which is green without it."""

from __future__ import annotations

from functools import cache

import pytest

from tests.attack import access_defects, audit_defects, item_defects, tls_defects, topic_policy_defects
from tests.attack.seeding import DEFECTS, Check, is_red

pytestmark = [pytest.mark.deep]

MODULES = (access_defects, audit_defects, item_defects, tls_defects, topic_policy_defects)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_test_turns_red_with_the_defect(name: str) -> None:
    plant, check = DEFECTS[name]
    # First, because it imports the test, whose constants must not be those of the defect.
    assert is_green(check), "the test is red without the defect, too"
    with plant():
        assert is_red(check), "no test sees it"


@cache
def is_green(check: Check) -> bool:
    """Some tests find several defects."""
    return not is_red(check)
