"""The contexts that the transport makes for calls: whoever calls is the same in all of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from foqs.contract.requests import AckRequest, DequeueRequest, TopicDemand
from foqs.model.calls import CallContext
from foqs.model.principal import Principal
from foqs.transport.bounds import TransportLimits
from foqs.transport.call_table import CallInFlight, CallTable
from foqs.wire.codec import Codec


def test_a_call_that_was_put_off_runs_with_the_permissions_of_then() -> None:
    served = list[CallContext]()
    scheduler = SimpleNamespace(
        charge=lambda *_: 0,
        is_large=lambda work: True,
        put_off=lambda queue, call: None,
        charge_turn=lambda queue: None,
        started=lambda queue: None,
    )
    server = SimpleNamespace(
        scheduler=scheduler,
        limits=TransportLimits(),
        codec=Codec(),
        admit=lambda call: None,
        verbs=SimpleNamespace(serve=lambda context, *_: served.append(context)),
        loop=SimpleNamespace(create_task=lambda served, name: None),
    )
    table = CallTable(cast(Any, server), cast(Any, Mock()))
    table.context = CallContext("10.0.0.1", principal=Principal("mailer", 1), is_permissive=True)
    dequeue = DequeueRequest("jobs", [TopicDemand("mail", 1)], None, 9_000)
    calls = []
    for verb, request in (("ack", AckRequest("jobs", [])), ("dequeue", dequeue)):
        message = server.codec.encode_call(verb, request, 1)[4:]
        calls.append(CallInFlight(cast(Any, None), cast(Any, None), message, 5.0, len(message)))
        assert table.begin(calls[-1]) is None
    assert not served
    now = table.context = CallContext("10.0.0.1", principal=Principal("mailer"), credential="t")
    for call in calls:
        assert table.leave_waiting(call)
        assert table.begin(call) is None
    assert [context.principal for context in served] == [now.principal] * 2
    assert [(context.is_permissive, context.credential) for context in served] == [(False, "t")] * 2
    assert [context.deadline_s for context in served] == [None, 14.0], "what else a context has stays"


@pytest.mark.parametrize("wait_ms", [0, 30_000])
def test_a_long_poll_is_of_the_same_principal_as_every_other_call(wait_ms: int) -> None:
    mailer, served = Principal("mailer"), list[CallContext]()
    scheduler = SimpleNamespace(charge=lambda *_: 0, is_large=lambda work: False, started=lambda queue: None)
    server = SimpleNamespace(
        scheduler=scheduler,
        limits=TransportLimits(),
        codec=Codec(),
        admit=lambda call: None,
        verbs=SimpleNamespace(serve=lambda context, *_: served.append(context)),
        loop=SimpleNamespace(create_task=lambda served, name: None),
    )
    table = CallTable(cast(Any, server), cast(Any, Mock()))
    table.context = CallContext("10.0.0.1", principal=mailer)
    requests = (
        ("ack", AckRequest("jobs", [])),
        ("dequeue", DequeueRequest("jobs", [TopicDemand("mail", 1)], None, wait_ms)),
    )
    for verb, request in requests:
        message = server.codec.encode_call(verb, request, 1)[4:]
        call = CallInFlight(cast(Any, None), cast(Any, None), message, 5.0, len(message))
        assert table.begin(call) is None
    assert [context.principal for context in served] == [mailer, mailer]
    assert [context.deadline_s for context in served] == [None, 5.0 + wait_ms / 1000 if wait_ms else None]
