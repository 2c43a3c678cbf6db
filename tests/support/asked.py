"""The verbs of a host as methods, for tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from foqs.contract.verbs import VERBS, Call
from foqs.host.verbs.table import method_name
from foqs.model.calls import CallContext

VERB_OF = {method_name(verb): verb for verb in VERBS}
"""The name of each verb on the wire by that of its method."""


class Asked:
    """What is called on it is asked with this context. The arguments are the fields of the request, in their order."""

    def __init__(self, call: Call, context: CallContext) -> None:
        self._call = call
        self._context = context

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name not in VERB_OF:
            raise AttributeError(name)
        verb = VERB_OF[name]

        def ask(*fields: Any, **named: Any) -> Awaitable[Any]:
            return self._call(self._context, verb, VERBS[verb].request(*fields, **named))

        return ask
