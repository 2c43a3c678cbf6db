"""Defects of hosts among each other that time alone shows: the tests of their rules turn red with each of them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest

from foqs.cluster.homes.home_table import HomeTable
from foqs.cluster.homes.probes import Probes
from foqs.cluster.homes.topic_reports import TopicReports
from foqs.cluster.routing.pulls import Pulls
from foqs.host.verbs.known_facts import KnownFacts
from foqs.model import host_addresses, judging
from foqs.model.caps import TokenBucket
from foqs.model.errors import FoqsError, UnknownNamespaceError
from foqs.model.facts import TopicFacts
from foqs.model.reasons import Reason, ReasonCode
from foqs.model.shared_caps import SharedCap
from foqs.testing import MemoryQueue
from tests.support.topic_net import CutNet
from tests.unit import (
    test_addresses,
    test_caps,
    test_probes,
    test_pulls,
    test_shared_caps,
    test_topic_reports,
    test_why_empty,
)

of_topic = KnownFacts.of_topic


def _on_net(test: Callable[..., None], *arguments: Any) -> Callable[[], None]:
    def run() -> None:
        net = CutNet()
        try:
            test(net, *arguments)
        finally:
            net.close()

    return run


def _on_queue(test: Callable[[MemoryQueue], None]) -> Callable[[], None]:
    def run() -> None:
        with MemoryQueue("jobs") as queue:
            test(queue)

    return run


def _without_cap(self: KnownFacts, *call: Any) -> TopicFacts:
    facts = of_topic(self, *call)
    facts.cap = 0.0
    return facts


DEFECTS: dict[str, tuple[Any, str, Any, Callable[[], Any]]] = {
    "a home is never suspected": (
        HomeTable, "suspect", lambda self, host_id, now_s: False,
        _on_net(test_probes.test_a_home_whose_calls_raise_whatever_it_is_is_suspected, ValueError("v")),
    ),
    "a rate that is touched drops the tokens in hand": (
        SharedCap, "_inherit", lambda self, batches, unused_count, now_s: None,
        lambda: test_shared_caps.test_a_rate_that_is_touched_takes_no_token_that_is_in_hand(0.02),
    ),
    "tokens that come back late stay with the old cap": (
        SharedCap, "_pass_on", lambda self, count, now_s: None,
        test_shared_caps.test_what_comes_back_to_a_cap_after_another_one_took_its_place_is_that_ones,
    ),
    "a bucket drops what is held when its rate is touched": (
        TokenBucket, "at_rate", lambda self, rate, now_s: TokenBucket(rate, now_s, min(self._tokens, 2.0)),
        test_caps.test_tokens_that_are_held_while_the_rate_is_touched_come_back_to_the_new_bucket,
    ),
    "reports of what others have emptied wait for the change period": (
        TopicReports, "pulled", lambda self, topic, count, now_s: False,
        test_topic_reports.test_items_that_come_after_others_have_pulled_all_are_reported_at_once,
    ),
    "a host asks around for what its home helps with": (
        Probes, "served", lambda self, topic, host_id: False,
        _on_net(test_probes.test_what_is_served_by_its_home_is_asked_for_nowhere_else),
    ),
    "nothing is said to be there of a capped topic": (
        KnownFacts, "of_topic", _without_cap,
        _on_queue(test_why_empty.test_ready_items_of_a_capped_topic_are_not_called_none),
    ),
    "a sick shard is not named": (
        judging, "_sick", lambda shard: Reason(ReasonCode.NOTHING_THERE, "no item"),
        test_why_empty.test_a_sick_shard_of_another_host_is_named_and_nothing_is_claimed_of_what_it_has,
    ),
    "any port can be dialled": (
        host_addresses, "PORT_MAX", 999_999,
        lambda: test_addresses.test_what_nobody_can_dial_is_no_address("queue-a:99999"),
    ),
    "what a peer refuses is the answer of the call": (
        Pulls, "_pulled", lambda self, pointer, pull: pull.result(),
        lambda: test_pulls.test_what_a_peer_refuses_keeps_no_call_from_what_another_one_has(
            UnknownNamespaceError("not known here")
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFECTS)
def test_a_test_turns_red_with_a_defect(name: str) -> None:
    target, attribute, defect, test = DEFECTS[name]
    with ExitStack() as stack:
        stack.enter_context(pytest.raises((AssertionError, FoqsError, pytest.fail.Exception)))
        stack.enter_context(patch.object(target, attribute, defect))
        _run(test)
    _run(test)


def _run(test: Callable[[], Any]) -> None:
    work = test()
    if inspect.iscoroutine(work):
        asyncio.run(work)
