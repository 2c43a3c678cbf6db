"""The judge of explanations on facts alone: stops that no test can stage, and rules that hold for any facts."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.model.facts import (
    Facts,
    HostFacts,
    HostTopic,
    ItemFacts,
    ItemStage,
    ShardFact,
    ShardFacts,
    TopicFacts,
    read_host_facts,
)
from foqs.model.judging import judge
from foqs.model.reason_texts import span
from foqs.model.reasons import REASONS_EXPLAINED_MAX, Reason, ReasonCode, Verdict
from foqs.model.topic_name import fair, hidden, ordered
from foqs.model.topic_reasons import LATE_MS_MAX, WAITED_MS_MIN
from tests.support.remedies import check_is_command

NOW_MS = 1_000_000
ITEM = "0-10000000001"


def of_topic(*hosts: HostTopic, name: str = "t", **settings: Any) -> Facts:
    by_host = [(f"h{at}", host) for at, host in enumerate(hosts)]
    return Facts("jobs", [TopicFacts(name, by_host=by_host, **settings)], now_ms=NOW_MS)


def of_item(state: ItemStage, *hosts: HostTopic, **fields: Any) -> Facts:
    found = of_topic(*hosts)
    found.item_id, found.item_shard_id = ITEM, 0
    found.item = ItemFacts(ITEM, "t", state, **fields)
    return found


class Case(NamedTuple):
    code: ReasonCode
    verdict: Verdict
    facts: Facts
    text: str
    """A part of the text."""
    until_ms: int = 0


FAILING = {"failed_per_1000s": 3_000, "ended_per_1000s": 1_000}
WAITS = {"waiting_calls": 2, "waited_ms": 5_000}
CASES = [
    Case(
        ReasonCode.ATTEMPTS_FAIL,
        Verdict.SLOW,
        of_topic(HostTopic(delayed=4, **FAILING), HostTopic(ended_per_1000s=500)),
        "67 % of the attempts at topic 't' failed in the last minute",
    ),
    Case(
        ReasonCode.WAKING, Verdict.MOVING, of_item(ItemStage.DELAYED, until_ms=NOW_MS - 40), "it was due 40 ms ago"
    ),
    Case(ReasonCode.SETTLING, Verdict.MOVING, of_item(ItemStage.SETTLING), "the end of its lease is being written"),
    Case(
        ReasonCode.INHERITED, Verdict.SLOW, of_item(ItemStage.INHERITED, until_ms=NOW_MS + 9_000),
        "the former owner of its shard", NOW_MS + 9_000,
    ),
    Case(
        ReasonCode.EXPIRED, Verdict.MOVING, of_item(ItemStage.READY, expires_at_ms=NOW_MS - 3_000),
        "its TTL ended 3 s ago",
    ),
    Case(
        ReasonCode.CLAIMED, Verdict.MOVING,
        of_item(ItemStage.PREFETCHED, HostTopic("t", ready=1, claimed=1, prefetched=1, waiting_calls=1)),
        "1 item of topic 't' is claimed for consumers",
    ),
    Case(
        ReasonCode.ON_THE_WAY, Verdict.MOVING,
        of_topic(HostTopic("t", ready=3, free=3, free_ms=20, waiting_calls=1, waited_ms=9_000)),
        "3 ready items of topic 't' are about to be delivered",
    ),
    Case(
        ReasonCode.OTHER_HOST_LATE, Verdict.SLOW,
        of_topic(HostTopic("t", ready=3, free=3, free_ms=2_000), HostTopic("t", **WAITS)),
        "are ready on host h0, and consumers wait on other hosts",
    ),
    Case(
        ReasonCode.CAP_HOME_AWAY, Verdict.SLOW,
        of_topic(HostTopic("t", ready=1, free=1, waits_for_token=True, is_cap_lost=True, **WAITS), cap=1.0),
        "the host that has these does not answer",
    ),
    Case(
        ReasonCode.TOPIC_CAPPED, Verdict.SLOW,
        of_topic(HostTopic("t", ready=1, free=1, waits_for_token=True, cap_until_ms=NOW_MS + 5, **WAITS)),
        "1 ready item of topic 't' waits for its cap of deliveries, which is new", NOW_MS + 5,
    ),
    Case(
        ReasonCode.NAMESPACE_CAPPED, Verdict.SLOW,
        of_topic(HostTopic("t", ready=1, free=1, waits_for_namespace=True, **WAITS)),
        "1 ready item of topic 't' waits for the cap of namespace 'jobs', deliveries, which is new",
    ),
    Case(
        ReasonCode.LEASES_FULL, Verdict.SLOW,
        of_topic(HostTopic("t", ready=1, no_room=1, leased=70, busy_until_ms=NOW_MS + 5, **WAITS)),
        "their shard has as many as it can have, 70 of this topic", NOW_MS + 5,
    ),
    Case(
        ReasonCode.PREFETCH_FULL, Verdict.SLOW, of_topic(HostTopic("t", ready=4, no_memory=4, **WAITS)),
        "4 ready items of topic 't' wait: the host holds as many claimed items as fit into its memory",
    ),
    Case(
        ReasonCode.REFILLING, Verdict.SLOW, of_topic(HostTopic("t", ready=400_000, unread=400_000, **WAITS)),
        "400,000 ready items of topic 't' are being read from the database",
    ),
    Case(
        ReasonCode.SLOT_MOVING, Verdict.SLOW, of_topic(HostTopic("t", ready=1, moving=1, **WAITS)),
        "1 ready item of topic 't' is on the way to another shard",
    ),
    Case(
        ReasonCode.COUNTING, Verdict.SLOW, of_topic(HostTopic("t", ready=1, uncounted=1, **WAITS)),
        "it counts its items before it delivers any in order",
    ),
    Case(
        ReasonCode.SHARD_SICK, Verdict.STOPPED,
        Facts("jobs", of_topic(HostTopic("t", ready=1, sick=1, **WAITS)).topics, sick=[ShardFact(3, "h0", "full")]),
        "shard 3 is sick and was not asked: full",
    ),
    Case(
        ReasonCode.UNSERVED, Verdict.STOPPED, Facts("jobs", item_id=ITEM, unserved=[ShardFact(0, "", "")],
        item_shard_id=0), "shard 0 is served by no host",
    ),
    Case(
        ReasonCode.HOST_SILENT, Verdict.SLOW,
        Facts("jobs", item_id=ITEM, item_problem="it was not read in time", item_shard_id=0),
        f"item {ITEM} could not be looked up: it was not read in time",
    ),
    Case(ReasonCode.GONE, Verdict.GONE, Facts("jobs", item_id=ITEM, sick=[ShardFact(3, "", "")]), "never there"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case.code.name for case in CASES])
def test_a_stop_has_its_reason_first(case: Case) -> None:
    found = judge(case.facts)
    first = found.reasons[0]
    assert (first.code, found.verdict, first.until_ms) == (case.code, case.verdict, case.until_ms), found
    assert case.text in first.text


def test_items_and_calls_beside_each_other_are_a_defect_after_a_second_alone() -> None:
    for waited_ms, free_ms, code in (
        (WAITED_MS_MIN, WAITED_MS_MIN, ReasonCode.UNEXPLAINED),
        (WAITED_MS_MIN - 1, 9_000, ReasonCode.ON_THE_WAY),
        (9_000, WAITED_MS_MIN - 1, ReasonCode.ON_THE_WAY),
    ):
        topic = HostTopic("t", ready=2, free=2, free_ms=free_ms, waiting_calls=1, waited_ms=waited_ms)
        found = judge(of_topic(topic))
        assert found.reasons[0].code == code
        assert judge(of_topic(topic, is_paused=True)).reasons[0].code == ReasonCode.TOPIC_PAUSED


def test_items_and_calls_on_two_hosts_are_a_defect_after_longer() -> None:
    for ms, code in ((LATE_MS_MAX - 1, ReasonCode.OTHER_HOST_LATE), (LATE_MS_MAX, ReasonCode.UNEXPLAINED)):
        here, there = HostTopic("t", ready=1, free=1, free_ms=ms), HostTopic("t", waiting_calls=1, waited_ms=ms)
        found = judge(of_topic(here, there))
        assert (found.reasons[0].code, "ready on" in found.reasons[0].text or "ready for" in found.reasons[0].text) == (
            code, True,
        )  # fmt: skip


@pytest.mark.parametrize(
    "stuck",
    [
        HostTopic("t", ready=1, astray=1),
        HostTopic("t", ready=1, claimed=1, prefetched=1, **WAITS),
        HostTopic("t", ready=1, unread=1, unread_idle=1, **WAITS),
        HostTopic("t", ready=1, free=1, waits_for_token=True, cap_late_ms=WAITED_MS_MIN, **WAITS),
    ],
)
def test_what_waits_for_an_event_that_does_not_come_is_a_defect(stuck: HostTopic) -> None:
    found = judge(of_topic(stuck))
    assert (found.verdict, found.reasons[0].code) == (Verdict.UNEXPLAINED, ReasonCode.UNEXPLAINED)
    assert "please report this" in found.reasons[0].text


def test_a_reason_of_a_key_or_group_names_it() -> None:
    busy = HostTopic(ready=2, busy=2, leased=1, busy_by="w@h/1")
    found = judge(of_topic(busy, name=ordered(hidden("t", "audit"), "k"))).reasons[0]
    assert found.text.startswith(
        "2 ready items of topic 't', group 'audit', ordering key 'k' wait for the delivery before"
    )
    assert found.remedy == "foqs consumer list --topic t --group audit jobs"


def test_a_sick_shard_without_items_of_a_topic_is_no_reason_of_it() -> None:
    facts = of_topic(HostTopic("t", ready=1, free=1))
    facts.sick = [ShardFact(3, "h", "full")]
    assert ReasonCode.SHARD_SICK not in [reason.code for reason in judge(facts).reasons]
    assert judge(facts).missing == []


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 ms"), (-5, "0 ms"), (999, "999 ms"), (1_999, "1999 ms"), (2_000, "2 s"), (119_000, "119 s"),
     (120_000, "2 min"), (7_200_000, "2 h"), (200_000_000, "2 days")],
)  # fmt: skip
def test_a_length_of_time_is_in_the_largest_unit_that_hides_little(ms: int, text: str) -> None:
    assert span(ms) == text


# ---- any facts ----

_NAMES = st.sampled_from(
    ["t", "-x", "a b;$(rm)", "'", "é", hidden("t", "audit"), ordered("t", "-k"), ordered("t", "'"), fair("t", "-k")]
)
_INTS = {one.name: st.integers(0, 3) for one in fields(HostTopic) if str(one.type) == "int" and "ms" not in one.name}
_TIMES = {one.name: st.integers(0, 20_000) for one in fields(HostTopic) if "ms" in one.name}
_FLAGS = {one.name: st.booleans() for one in fields(HostTopic) if str(one.type) == "bool"}
_HOST_TOPICS = st.builds(HostTopic, st.just(""), **_INTS, **_TIMES, **_FLAGS)
_TOPICS = st.builds(
    TopicFacts, _NAMES, st.booleans(), st.just("why"), st.sampled_from([0.0, 2.0]), st.integers(0, 2),
    st.integers(0, 2), st.booleans(), st.booleans(), st.lists(st.tuples(st.just("h"), _HOST_TOPICS), max_size=2),
)  # fmt: skip
_SHARD = st.builds(ShardFact, st.integers(0, 9), st.just("h"), st.just("full"), st.sampled_from(["leaving", "differs"]))
_SHARDS = st.lists(_SHARD, max_size=5)
_ITEMS = st.none() | st.builds(
    ItemFacts, st.just(ITEM), _NAMES, st.sampled_from(ItemStage), until_ms=st.integers(0, 2 * NOW_MS),
    since_ms=st.integers(0, NOW_MS), expires_at_ms=st.integers(0, 2 * NOW_MS), failed_attempts=st.integers(0, 2),
)  # fmt: skip
_FACTS = st.builds(
    Facts, st.sampled_from(["jobs", "-jobs"]), st.lists(_TOPICS, max_size=3), st.booleans(), st.just("why"),
    st.sampled_from([0.0, 2.0]), st.booleans(), st.booleans(), _SHARDS, _SHARDS, _SHARDS,
    st.lists(st.tuples(st.just("h"), st.just("hangs")), max_size=2), st.integers(0, 1), st.none() | st.just("p"),
    st.just(""), st.booleans(), st.just(NOW_MS), st.sampled_from(["", ITEM]), _ITEMS, st.sampled_from(["", "away"]),
    st.integers(-1, 3), st.none() | _HOST_TOPICS, st.integers(0, 20),
)  # fmt: skip


@given(_FACTS)
def test_any_facts_have_reasons_whose_remedies_are_commands(facts: Facts) -> None:
    if facts.item is None or facts.item.state == ItemStage.DEAD:
        facts.topics = [] if facts.item_id else facts.topics
    found = judge(facts)
    assert 1 <= len(found.reasons) <= REASONS_EXPLAINED_MAX
    assert found.summary
    is_free = not (facts.item_id or facts.is_paused or facts.all_topics is not None)
    named = {reason.topic for reason in found.reasons}
    for topic in facts.topics if is_free and len(found.reasons) < REASONS_EXPLAINED_MAX else ():
        assert topic.topic in named or topic.sum("ready") <= topic.sum("sick"), "ready items without a reason"
    for reason in found.reasons:
        assert ReasonCode(reason.code)
        assert reason.text
        assert "  " not in reason.text
        if reason.remedy:
            check_is_command(reason.remedy)


@given(_FACTS)
def test_hosts_and_texts_of_others_are_left_out(facts: Facts) -> None:
    facts.leave_out_hosts()
    facts.leave_out_contents()
    found = judge(facts)
    assert not [reason for reason in found.reasons if reason.host]
    assert not [reason for reason in found.reasons if "full" in reason.text.split() or "hangs" in reason.text]


def test_facts_of_an_older_host_lack_fields_and_are_read_all_the_same() -> None:
    names = [one.name for one in fields(HostTopic)]
    topic = SimpleNamespace(
        **dict.fromkeys(names),
    )
    topic.name, topic.ready = "t", 3
    decoded = SimpleNamespace(
        now_ms=5, shards=[SimpleNamespace(shard_id=1, state="owned", epoch=None, detail=None)], topics=[topic],
        topics_count=None, all_topics=None, item=None, item_problem=None,
    )  # fmt: skip
    expected = HostFacts(5, [ShardFacts(1, "owned")], [HostTopic("t", ready=3)])
    assert read_host_facts(decoded) == expected


def test_the_decisive_reason_of_a_namespace_is_that_of_a_topic_that_stands_still() -> None:
    topics = [
        TopicFacts("moving", by_host=[("h", HostTopic("moving", ready=9, free=9, free_ms=1, waiting_calls=1))]),
        TopicFacts("alone", by_host=[("h", HostTopic("alone", ready=1, free=1))]),
    ]
    found = judge(Facts("jobs", topics, all_topics=HostTopic(ready=10), topics_count=40, now_ms=NOW_MS))
    assert [(one.code, one.count) for one in found.reasons] == [
        (ReasonCode.NO_CONSUMERS, 1), (ReasonCode.ON_THE_WAY, 9), (ReasonCode.NOT_LOOKED_AT, 38),
    ]  # fmt: skip
    assert isinstance(found.reasons[0], Reason)


def test_few_failures_and_those_of_dead_letters_alone_are_no_reason() -> None:
    quiet = [
        HostTopic(delayed=4, failed_per_1000s=40),
        HostTopic(delayed=4, failed_per_1000s=200, ended_per_1000s=900),
        HostTopic(dead=4, failed_per_1000s=2_000),
    ]
    for found in quiet:
        assert ReasonCode.ATTEMPTS_FAIL not in [reason.code for reason in judge(of_topic(found)).reasons], found


def test_the_wait_is_that_of_a_cap_and_else_of_the_speed_of_the_last_minute() -> None:
    hosts = (HostTopic(ready=6, free=6, delivered_per_1000s=500), HostTopic(delivered_per_1000s=1_500))
    assert judge(of_topic(*hosts)).expected_wait_ms == 3_000
    assert judge(of_topic(*hosts, cap=0.5)).expected_wait_ms == 12_000
    assert judge(of_topic(HostTopic(ready=6, free=6))).expected_wait_ms == 0
    behind = of_item(ItemStage.READY, HostTopic(ready=6, free=6, before=3, delivered_per_1000s=2_000))
    found = judge(behind)
    assert (found.ahead_count, found.expected_wait_ms) == (3, 2_000)
    (ahead,) = [reason for reason in found.reasons if reason.code == ReasonCode.BEHIND]
    assert ahead.until_ms == NOW_MS + 2_000
