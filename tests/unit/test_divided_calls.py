"""Redrives and purges without ids ask for the dead letters that the request means, on one host as in a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.cluster.routing.by_shard import DividedCalls
from foqs.contract import requests as of
from foqs.host.verbs.chosen_dead import page_asked
from foqs.model.calls import StoredItemPage

OF_THE_CALL = {"ids", "page_token"}
"""The fields that say how a call goes on, in place of which dead letters it means."""


def filled(struct: Any) -> Any:
    """Return a request with a value of its own in each field."""
    names = [name for name, _ in struct.default_spec]
    return struct(**{name: None if name in OF_THE_CALL else f"the {name}" for name in names})


@pytest.mark.parametrize("verb", ["redriveDeadLetters", "purgeDeadLetters"])
async def test_a_cluster_lists_by_every_field_of_the_request(verb: str) -> None:
    seen: list[Any] = []

    async def listed(context: Any, request: Any) -> StoredItemPage:
        seen.append(request)
        return StoredItemPage([], "")

    struct: Any = of.RedriveDeadLettersRequest if verb == "redriveDeadLetters" else of.PurgeDeadLettersRequest
    request = filled(struct)
    divided = DividedCalls({verb: listed}, None, listed)  # type: ignore[dict-item, arg-type]
    await divided.chosen(verb, None, request)  # type: ignore[arg-type]
    given = {name: getattr(request, name) for name, _ in struct.default_spec if name not in OF_THE_CALL}
    assert {name: getattr(seen[0], name) for name in given} == given
    assert page_asked(request) == of.changed(seen[0], page_token=page_asked(request).page_token)
