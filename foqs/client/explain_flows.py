"""The verb explain: arguments to a request, and the response to an Explanation."""

from __future__ import annotations

from foqs.client.checks import check_request
from foqs.client.dequeued import reasons_of
from foqs.client.flows import Call, Flow, Terms, call_flow
from foqs.client.retry import Repeat
from foqs.model.reasons import Explanation, Verdict
from foqs.wire import codec as wire


def explain(
    terms: Terms,
    namespace: str,
    topic: str,
    item_id: str,
    group: str | None,
    ordering_key: str | None,
    fairness_key: str | None,
) -> Flow[Explanation]:
    request = wire.structs.ExplainRequest(
        namespace_name=namespace,
        topic=topic,
        item_id=item_id,
        group=group,
        ordering_key=ordering_key,
        fairness_key=fairness_key,
    )
    check_request(request)
    response = yield from call_flow(terms, Call("explain", request, Repeat.READ, is_long=True))
    verdict = response.verdict if response.verdict is not None else Verdict.UNEXPLAINED
    return Explanation(
        Verdict(verdict) if verdict in Verdict._value2member_map_ else verdict,
        response.summary or "",
        reasons_of(response.reasons or ()),
        response.as_of_ms or 0,
        response.ahead_count or 0,
        bool(response.ahead_is_exact),
        response.expected_wait_ms or 0,
        list(response.missing or ()),
    )
