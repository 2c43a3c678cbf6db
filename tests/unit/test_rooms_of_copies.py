"""Neither a namespace nor the owner of a prefix takes all the copies for new groups that a cluster makes at a time."""

from __future__ import annotations

import pytest

from foqs.contract.permissions import ROLES
from foqs.host.verbs.namespace_verbs import bounding_prefixes
from foqs.model.calls import CallContext
from foqs.model.errors import OverloadedError
from foqs.model.groups import (
    GROUPS_COPYING_MAX,
    GROUPS_COPYING_PER_NAMESPACE_MAX,
    GROUPS_COPYING_PER_PREFIX_MAX,
    check_room_for_copy,
)
from foqs.model.principal import EVERYBODY, Principal

OWNER = int(ROLES["owner"])


def test_a_namespace_has_a_part_of_the_copies() -> None:
    others = ["other"] * 3
    check_room_for_copy([*others, *["a"] * (GROUPS_COPYING_PER_NAMESPACE_MAX - 1)], "a", ())
    with pytest.raises(OverloadedError, match="2 new groups of namespace 'a', and the limit is 2: try again") as caught:
        check_room_for_copy([*others, *["a"] * GROUPS_COPYING_PER_NAMESPACE_MAX], "a", ())
    assert caught.value.retry_after_ms


def test_the_owner_of_a_prefix_has_a_part_of_the_copies_in_however_many_namespaces() -> None:
    copying = [f"team-{number}" for number in range(GROUPS_COPYING_PER_PREFIX_MAX)]
    context = CallContext("", principal=Principal("ann", prefixes={"team-": OWNER}))
    with pytest.raises(OverloadedError, match="4 new groups of the namespaces whose names begin with 'team-'"):
        check_room_for_copy(copying, "team-new", bounding_prefixes(context, "team-new"))
    check_room_for_copy(copying[1:], "team-new", bounding_prefixes(context, "team-new"))
    for who in (
        Principal("ben", names={"team-new": OWNER}),
        Principal("cid", int(ROLES["operator"]), prefixes={"team-": OWNER}),
        Principal("dan", prefixes={"team-": OWNER, "team-n": OWNER}),
        EVERYBODY,
    ):
        check_room_for_copy(copying, "team-new", bounding_prefixes(CallContext("", principal=who), "team-new"))


def test_a_cluster_has_a_bound_for_all() -> None:
    copying = [str(number) for number in range(GROUPS_COPYING_MAX)]
    check_room_for_copy(copying[1:], "new", ())
    with pytest.raises(OverloadedError, match="16 new groups of the cluster"):
        check_room_for_copy(copying, "new", ())
