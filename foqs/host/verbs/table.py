"""The methods that do the verbs of the contract on the shards of this host, by the names of the verbs."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from foqs.contract.verbs import VERBS, Method, Table, Whole

NOT_OF_A_HOST = frozenset(
    name
    for name, verb in VERBS.items()
    if verb.route in (Whole.OF_PEERS, Whole.EXPLAINED, Whole.OF_CONNECTION)
) | {"listHosts"}  # fmt: skip
"""The verbs that a host does not do by itself: the connection or the cluster does them."""


def method_name(verb: str) -> str:
    """The name of the method that does the verb, such as `extend_lease` for extendLease."""
    return re.sub(r"(?=[A-Z])", "_", verb).lower()


def verb_table(*parts: object, without_context: Sequence[object] = ()) -> Table:
    """The method of each verb, which one of the parts has under the verb's name.

    A method takes the context and the request; those of the parts `without_context` take the request alone.
    """
    table: dict[str, Method] = {}
    for verb in sorted(VERBS.keys() - NOT_OF_A_HOST):
        name = method_name(verb)
        found = [getattr(part, name) for part in parts if hasattr(part, name)]
        found += [_with_context(getattr(part, name)) for part in without_context if hasattr(part, name)]
        if len(found) != 1:
            raise TypeError(f"verb {verb} has {len(found)} methods {name}, not one")
        table[verb] = found[0]
    return table


def _with_context(method: Callable[[Any], Awaitable[Any]]) -> Method:
    return lambda _, request: method(request)
