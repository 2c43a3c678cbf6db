# Generated from foqs/client/aio/admin_explain.py by scripts/generate_sync.py: edit that one.
"""The verb explain of service FoqsAdmin, as a method of its client."""

from __future__ import annotations

from datetime import timedelta

from foqs.client import explain_flows
from foqs.client.sync.base import BaseClient
from foqs.model.reasons import Explanation


class ExplainVerbs(BaseClient):
    """The verb that says why items move or not. It is a part of `AdminClient`."""

    def explain(
        self,
        namespace: str,
        topic: str = "",
        *,
        item_id: str = "",
        group: str | None = None,
        ordering_key: str | None = None,
        fairness_key: str | None = None,
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> Explanation:
        """Return why an item is not delivered, or those of a topic, or those of a namespace without either.

        All living hosts are asked, for 2 s at most; those that do not answer are among the reasons.
        group, ordering_key, fairness_key: only these items of the topic.
        Raises OverloadedError beyond 50 calls a second at one host.
        """
        terms = self._within(deadline_ms, deadline)
        return self._run(explain_flows.explain(terms, namespace, topic, item_id, group, ordering_key, fairness_key))
