"""An audit that records nothing, for tests of what is beside it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from foqs.contract.verbs import Call
from foqs.model.calls import CallContext
from foqs.model.errors import PermissionDeniedError


class NoAudit:
    def audited(self, context: CallContext, verb: str, request: Any, call: Call) -> Awaitable[Any]:
        return call(context, verb, request)

    def refused(self, context: CallContext, verb: str, request: Any, error: PermissionDeniedError) -> None:
        return None


AUDIT_NOTHING = NoAudit()
