"""Hosts that wait in vain ask others than the homes of their topics, at a bounded pace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from foqs.cluster.homes.home_table import home_of
from foqs.cluster.homes.probes import (
    PROBE_AFTER_MS,
    PROBE_HOSTS_MAX,
    PROBE_MS,
    PROBE_TOPICS_MAX,
    PROBED_MS,
    PROBED_TOPICS_MAX,
    Probes,
)
from foqs.model.errors import UnavailableError
from foqs.model.stocks import ANY_TOPIC, Stock, Topic
from tests.support.topic_net import NAMES, CutNet

FOUND_MS = PROBE_AFTER_MS + 2 * PROBE_MS
TOPICS = [next((1, str(n)) for n in range(1_000) if home_of((1, str(n)), NAMES) == home) for home in NAMES]


@pytest.fixture
def net() -> Iterator[CutNet]:
    net = CutNet()
    yield net
    net.close()


@pytest.mark.parametrize("cut", [("b", "c"), ("c", "b"), ("a", "c"), ("c", "a")], ids="-".join)
@pytest.mark.parametrize("is_both", [False, True], ids=["one-way", "both"])
@pytest.mark.parametrize("topic", [*TOPICS, (1, ANY_TOPIC)], ids=["home a", "home b", "home c", "any"])
def test_who_waits_hears_of_items_on_a_host_that_it_reaches_whichever_other_link_is_cut(
    net: CutNet, topic: Topic, is_both: bool, cut: tuple[str, str]
) -> None:
    net.cut(*cut)
    if is_both:
        net.cut(*reversed(cut))
    net.pass_ms(3_000)
    wait = net.loop.call(net.news["a"].wait, {topic: 1})
    net.pass_ms(1_000)
    stocked = (1, "t") if topic[1] == ANY_TOPIC else topic
    net.put("b", Stock(1, 0, 5), stocked)
    net.pass_ms(FOUND_MS)
    assert "b" in {host_id for _, host_id in wait.pointers}


@pytest.mark.parametrize("topic", TOPICS, ids=NAMES)
def test_hosts_that_see_different_members_hear_of_each_others_items(net: CutNet, topic: Topic) -> None:
    net.loop.call(net.news["b"].members, ["a", "b"], ["a", "b"])
    wait = net.loop.call(net.news["a"].wait, {topic: 1})
    net.put("b", Stock(1, 0, 5), topic)
    net.pass_ms(FOUND_MS)
    assert (topic, "b") in wait.pointers


def test_items_of_a_host_that_is_reached_are_found_though_the_home_names_another_one_that_is_not(net: CutNet) -> None:
    topic = TOPICS[NAMES.index("a")]
    net.put("c", Stock(5, 0, 1), topic)
    net.put("b", Stock(5, 9, 5), topic)
    wait = net.loop.call(net.news["a"].wait, {topic: 1})
    net.pass_ms(FOUND_MS)
    assert {host_id for _, host_id in wait.pointers} == {"b", "c"}


def test_a_call_that_does_not_wait_hears_of_what_was_found_since_the_last_one(net: CutNet) -> None:
    topic = TOPICS[NAMES.index("c")]
    net.cut("b", "c")
    net.cut("c", "b")
    net.put("b", Stock(1, 0, 5), topic)
    for _ in range(4):
        wait = net.loop.call(net.news["a"].wait, {topic: 1})
        net.loop.turn()
        if wait.pointers:
            break
        net.loop.call(net.news["a"].leave, wait)
        net.pass_ms(1_000)
    assert (topic, "b") in wait.pointers


def test_a_host_where_items_were_found_is_told_to_the_next_call_at_once_as_long_as_it_gives_some(net: CutNet) -> None:
    topic = TOPICS[NAMES.index("c")]
    net.cut("b", "c")
    net.put("b", Stock(9, 0, 5), topic)
    wait = net.loop.call(net.news["a"].wait, {topic: 1})
    net.pass_ms(FOUND_MS)
    pointer = wait.take()[0]
    net.loop.call(net.news["a"].leave, wait)
    net.loop.call(net.news["a"].served, pointer)
    assert net.loop.call(net.news["a"].wait, {topic: 1}).pointers


def test_asking_around_takes_no_items_from_those_who_were_told_of_them(net: CutNet) -> None:
    topic = TOPICS[NAMES.index("c")]
    net.put("b", Stock(1, 0, 5), topic)
    net.pass_ms(100)
    assert net.loop.call(net.news["c"].find, "a", {topic: 0})[0].host_id == "b"
    assert net.loop.call(net.news["c"].find, "a", {topic: 1})[0].host_id == "b"
    before = len(net.news["b"].directory)
    net.loop.call(net.news["b"].find, "a", {(1, "nobody's"): 0})
    assert len(net.news["b"].directory) == before


def test_what_is_served_by_its_home_is_asked_for_nowhere_else(net: CutNet) -> None:
    topic = TOPICS[NAMES.index("c")]
    for _ in range(5):
        wait = net.loop.call(net.news["a"].wait, {topic: 1})
        net.put("b", Stock(1, 0, 5), topic)
        net.pass_ms(PROBE_AFTER_MS - 200)
        for pointer in wait.take():
            net.loop.call(net.news["a"].served, pointer)
        net.loop.call(net.news["a"].leave, wait)
        net.put("b", Stock(0), topic)
    assert not net.probes


def asked(
    probes: Probes, hosts_count: int, topics_count: int, rounds_count: int
) -> tuple[Counter[tuple[str, Topic]], int]:
    """How often each host is asked for each topic, and the most topics of a round."""
    topics = [(1, str(number)) for number in range(topics_count)]
    probes.want(topics, 0.0)
    hosts = [f"h{number:03}" for number in range(hosts_count)]
    found: Counter[tuple[str, Topic]] = Counter()
    most = 0
    for number in range(rounds_count):
        turn = probes.take_round(hosts, lambda topic: True, PROBE_AFTER_MS / 1000 + number)
        assert "h000" not in turn
        most = max(most, sum(map(len, turn.values())))
        found.update((host_id, topic) for host_id, some in turn.items() for topic in some)
    return found, most


@pytest.mark.parametrize(("hosts", "topics"), [(3, 1), (3, 1_000), (3, 9_000), (20, 100), (200, 20), (200, 500)])
def test_all_others_are_asked_for_all_topics_within_the_rounds_that_the_bound_allows(hosts: int, topics: int) -> None:
    of_topics = -(-topics // PROBE_TOPICS_MAX)
    at_once = max(1, min(PROBE_HOSTS_MAX, PROBE_TOPICS_MAX // min(topics, PROBE_TOPICS_MAX)))
    rounds = of_topics * -(-(hosts - 1) // at_once)
    found, most = asked(Probes("h000"), hosts, topics, rounds + of_topics)
    assert len(found) == (hosts - 1) * topics
    assert most <= PROBE_TOPICS_MAX


def test_topics_beyond_the_bound_are_not_noted_and_those_that_nobody_wants_are_forgotten() -> None:
    probes = Probes("a")
    probes.want([(1, str(number)) for number in range(PROBED_TOPICS_MAX + 5)], 0.0)
    assert len(probes) == PROBED_TOPICS_MAX
    for number in range(PROBED_TOPICS_MAX // PROBE_TOPICS_MAX + 1):
        assert probes.take_round(NAMES, lambda topic: False, PROBED_MS / 1000 + 1 + number) == {}
    assert len(probes) == 0


def test_a_host_where_something_was_found_is_asked_in_each_round() -> None:
    probes, topic = Probes("h000"), (1, "0")
    probes.want([topic], 0.0)
    probes.found(topic, "h150")
    hosts = [f"h{number:03}" for number in range(200)]
    for number in range(10):
        assert topic in probes.take_round(hosts, lambda _: True, PROBE_AFTER_MS / 1000 + number)["h150"]


@pytest.mark.parametrize(
    "raised", [ValueError("v"), UnicodeError("u"), OverflowError("o"), KeyError("k"), OSError("e")]
)
def test_a_home_whose_calls_raise_whatever_it_is_is_suspected(net: CutNet, raised: Exception) -> None:
    topic = TOPICS[NAMES.index("c")]
    net.raised["c"] = raised
    net.loop.call(net.news["a"].wait, {topic: 1})
    net.pass_ms(100)
    assert "c" not in net.news["a"]._home.hosts


def test_a_home_that_refuses_is_suspected_as_one_that_is_away(net: CutNet) -> None:
    net.raised["c"] = UnavailableError("busy", nothing_done=True)
    net.put("a", Stock(1, 0, 5), TOPICS[NAMES.index("c")])
    net.pass_ms(100)
    assert "c" not in net.news["a"]._home.hosts
