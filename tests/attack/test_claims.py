"""A host of the cluster that says what is not true: it harms nobody for long, and is told of in log and metrics."""

from __future__ import annotations

from math import inf, nan
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.cluster.homes import cap_ledger, directory
from foqs.cluster.homes.cap_ledger import CapLedger
from foqs.cluster.homes.directory import DOUBT_MS, DOUBTFUL_AGAIN_MS, Directory
from foqs.cluster.homes.host_interests import INTEREST_TOPICS_MAX, HostInterests
from foqs.cluster.homes.portions import Portions
from foqs.cluster.ownership import owner_claims
from foqs.cluster.peers.peer_claims import CLAIMS_PER_MESSAGE_MAX, COUNT_MAX, PeerClaims
from foqs.cluster.routing.routing_gauges import OF_ROUTING, RoutingSources
from foqs.model import limits
from foqs.model.errors import InvalidArgumentError
from foqs.model.shared_caps import CapAsk, CapGrant
from foqs.model.stocks import Pointer, Reported, Stock
from foqs.wire.codec import structs
from tests.support.peer_world import join, peer_world
from tests.support.raw_client import RawClient
from tests.support.waiting import PATIENCE_MS, PATIENCE_S

TOPIC = (1, "t")


async def report(peer: RawClient, *opened: tuple[int, int]) -> None:
    told = [structs.OpenedShard(*shard) for shard in opened]
    assert (await peer.call("report", structs.ReportRequest([], told))).error is None


@pytest.mark.parametrize("shard", [(1, 1 << 62), (1, (1 << 63) - 1), (1, -1), (99, 1), (-1, 6), (1, 0)])
async def test_an_epoch_that_no_host_can_have_and_a_shard_that_there_is_not_change_nothing(
    shard: tuple[int, int],
) -> None:
    async with peer_world() as w, w.stranger() as peer:
        await join(peer)
        with capture_logs() as logs:
            await report(peer, shard)
        owner = w.owners.get(1)
        assert owner is not None
        assert (owner.host_id, owner.epoch) == ("other", 5)
        assert w.owners.get(99) is None
        assert [entry["event"] for entry in logs] == ["peer_claim_refused"]
        assert w.claims.refused_total["opened"] + w.owners.claims.counts["refused"] == 1


async def test_a_shard_that_was_told_away_is_back_after_its_time_and_told_of_in_log_and_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner_claims, "CLAIM_MS", PATIENCE_MS)
    async with peer_world() as w, w.stranger() as peer:
        await join(peer)
        sources = RoutingSources(
            w.peers, SimpleNamespace(pulls_total={}, items_total=0), w.news, w.claims, w.owners.claims
        )  # type: ignore[arg-type]
        await report(peer, (1, 6), (2, 8))
        assert [w.owners.get(at).host_id for at in (1, 2)] == ["caller"] * 2  # type: ignore[union-attr]
        assert _values(sources)["foqs_owner_claims"] == 2
        now_s = w.owners.claims._now_s
        monkeypatch.setattr(w.owners.claims, "_now_s", lambda: now_s() + PATIENCE_S)
        with capture_logs() as logs:
            assert [w.owners.get(at).host_id for at in (1, 2)] == ["other"] * 2  # type: ignore[union-attr]
        assert {entry["event"] for entry in logs} == {"owner_claim_ended"}
        values = _values(sources)
        assert values["foqs_owner_claims"] == 0
        assert values["foqs_owner_claims_ended_total"] == 2


def _values(sources: RoutingSources) -> dict[str, float]:
    """The sums of all samples, by name."""
    sums: dict[str, float] = {}
    for metric in [row.metric(sources) for row in OF_ROUTING]:
        for sample in metric.samples:
            sums[sample.name] = sums.get(sample.name, 0) + sample.value
    return sums


async def test_a_message_about_too_many_things_is_refused() -> None:
    async with peer_world() as w, w.stranger() as peer:
        await join(peer)
        count = CLAIMS_PER_MESSAGE_MAX + 1
        for name, request in [
            ("report", structs.ReportRequest([structs.TopicStock(1, str(at), 1) for at in range(count)])),
            ("report", structs.ReportRequest([], [structs.OpenedShard(at, 1) for at in range(count)])),
            ("seek", structs.SeekRequest([structs.TopicWish(1, str(at), 1) for at in range(count)])),
            ("seek", structs.SeekRequest([], [structs.CapAsk(1, str(at), 1.0) for at in range(count)])),
            ("seek", structs.SeekRequest([], [], [structs.TopicDepth(1, str(at)) for at in range(count)])),
            ("hint", structs.HintRequest([structs.TopicPointer(1, str(at), "other", 1) for at in range(count)])),
        ]:
            assert isinstance((await peer.call(name, request)).error, InvalidArgumentError), name


# ---- values ----


@pytest.fixture
def claims() -> PeerClaims:
    return PeerClaims("me", lambda: {"me", "a", "b"}, lambda: 0.0)


@pytest.mark.parametrize("rate", [nan, inf, -inf, -1.0])
def test_a_rate_that_is_none_is_refused(claims: PeerClaims, rate: float) -> None:
    good = structs.CapAsk(1, "t", 2.0, 3, 0, 0, 1)
    assert [ask.rate for ask in claims.asks("a", [structs.CapAsk(1, "t", rate, 3), good])] == [2.0]
    assert claims.refused_total["ask"] == 1


@pytest.mark.parametrize("counts", [(-1, 0, 0, 1), (0, -1, 0, 1), (0, 0, -1, 1), (0, 0, 0, -1)])
def test_a_count_below_nothing_is_refused(claims: PeerClaims, counts: tuple[int, int, int, int]) -> None:
    assert claims.asks("a", [structs.CapAsk(1, "t", 1.0, *counts)]) == []
    assert claims.stocks("a", [structs.TopicStock(1, "t", -1)]) == {}
    assert claims.interests("a", [structs.TopicWish(1, "t", -1)]) == {}
    assert claims.pointers("a", [structs.TopicPointer(1, "t", "b", -1)]) == []
    assert claims.depths("a", [structs.TopicDepth(1, "t", -1)], [TOPIC]) == {}
    assert all(claims.refused_total[claim] == 1 for claim in ("ask", "stock", "wish", "pointer", "depth"))


@pytest.mark.parametrize(("number", "name"), [(-1, "t"), (1, "é" * 128), (1, "x" * 100_000)])
def test_what_can_be_no_topic_is_refused(claims: PeerClaims, number: int, name: str) -> None:
    assert claims.stocks("a", [structs.TopicStock(number, name, 1)]) == {}
    assert claims.interests("a", [structs.TopicWish(number, name, 1)]) == {}
    assert claims.asks("a", [structs.CapAsk(number, name, 1.0)]) == []
    assert claims.depths_asked("a", [structs.TopicDepth(number, name), structs.TopicDepth(*TOPIC)]) == [TOPIC]
    assert claims.pointers("a", [structs.TopicPointer(number, name, "b", 1)]) == []


def test_counts_and_rates_that_are_too_large_are_made_less(claims: PeerClaims) -> None:
    huge = (1 << 63) - 1
    stocks = claims.stocks("a", [structs.TopicStock(1, "t", huge, (1 << 31) - 1, -huge, True)])
    assert stocks == {TOPIC: Reported(Stock(COUNT_MAX, (1 << 31) - 1, 0), True)}
    assert claims.interests("a", [structs.TopicWish(1, "t", huge)]) == {TOPIC: COUNT_MAX}
    (ask,) = claims.asks("a", [structs.CapAsk(1, "t", 1e300, huge, huge, huge, (1 << 31) - 1)])
    assert ask == CapAsk(TOPIC, limits.DELIVERIES_PER_SECOND_MAX, COUNT_MAX, COUNT_MAX, COUNT_MAX, COUNT_MAX, False)


def test_hints_lead_to_living_hosts_alone_and_never_to_this_one(claims: PeerClaims) -> None:
    told = [structs.TopicPointer(1, "t", host_id, 1, 0, 0) for host_id in ("b", "dead", "", "me")]
    assert [pointer.host_id for pointer in claims.pointers("a", told)] == ["b"]
    assert claims.refused_total["pointer"] == 2


def test_a_home_names_hosts_for_topics_that_it_was_asked_for_alone(claims: PeerClaims) -> None:
    told = [structs.TopicPointer(1, name, host_id, 1) for name in ("t", "u") for host_id in ("b", "dead", "me")]
    assert claims.pointers("a", told, {TOPIC: 1}) == [Pointer(TOPIC, "b", Stock(1))]
    assert claims.pointers("a", [structs.TopicPointer(1, "t", "b", -1)], {TOPIC: 1}) == []


def test_a_host_tells_the_depths_that_it_was_asked_for_alone(claims: PeerClaims) -> None:
    told = [structs.TopicDepth(1, "t", (1 << 63) - 1), structs.TopicDepth(1, "u", 7)]
    assert claims.depths("a", told, [TOPIC]) == {TOPIC: COUNT_MAX}
    assert claims.refused_total["depth"] == 1


def granted(*values: float) -> Any:
    return structs.CapGrant(*TOPIC, *values)


def test_a_home_grants_what_it_was_asked_for_alone(claims: PeerClaims) -> None:
    ask = CapAsk(TOPIC, 10.0, 3, 0, 0, 1, True)
    grants = claims.grants("a", [granted(1_000, 50.0, 400.0, 1e9), structs.CapGrant(1, "u", 1, 0.0, 0.0, 0.0)], [ask])
    assert grants == [CapGrant(TOPIC, 3, 50.0, 400.0, 10.0)]
    assert claims.refused_total["grant"] == 1
    assert claims.grants("a", None, [ask]) is None


@pytest.mark.parametrize("field", ["after_ms", "ends_ms", "share_per_second"])
@pytest.mark.parametrize("value", [nan, inf, -1.0])
def test_a_grant_of_no_time_is_refused(claims: PeerClaims, field: str, value: float) -> None:
    grant = granted(1, 0.0, 400.0, 1.0)
    setattr(grant, field, value)
    assert claims.grants("a", [grant], [CapAsk(TOPIC, 10.0, 3, 0, 0, 1, True)]) == []


def test_a_home_puts_off_tokens_no_longer_than_a_cap_of_that_rate_can_take(claims: PeerClaims) -> None:
    (grant,) = claims.grants("a", [granted(1, 1e12, 1e13, 1.0)], [CapAsk(TOPIC, 10.0, 1, 0, 0, 1, True)]) or ()
    assert grant.after_ms <= 3_000
    assert grant.ends_ms <= 13_000
    slow = CapAsk(TOPIC, 0.001, 1, 0, 0, 1, True)
    assert claims.grants("a", [granted(1, 1e6, 2e6, 0.001)], [slow]) == [CapGrant(TOPIC, 1, 1e6, 2e6, 0.001)]


def test_a_claim_that_makes_no_sense_is_logged_once_a_minute_for_each_host(claims: PeerClaims) -> None:
    with capture_logs() as logs:
        for _ in range(100):
            for peer in "ab":
                claims.interests(peer, [structs.TopicWish(1, "t", -1)])
    assert [(entry["event"], entry["peer"]) for entry in logs] == [
        ("peer_claim_refused", "a"),
        ("peer_claim_refused", "b"),
    ]


# ---- tables ----


def test_a_host_that_names_too_much_loses_its_oldest_and_nobody_else_any() -> None:
    portions: Portions[int] = Portions(10)
    portions.has_hosts(4)
    assert portions.share == 5
    portions.put("b", 1)
    gone = [key for number in range(100) for key in portions.put("a", number)]
    assert gone == list(range(95))
    assert (portions.count_of("a"), portions.count_of("b")) == (5, 1)
    assert portions.put("a", 95) == [], "it is there, and the newest now"
    assert portions.put("a", 100) == [96]
    portions.has_hosts(20)
    assert portions.share == 1
    assert portions.put("a", 101) == [97, 98], "what is too much goes little by little"
    assert portions.greediest() == ("a", 99)


def test_a_host_that_reports_any_number_of_topics_takes_no_place_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "TOPICS_OF_HOME_MAX", 100)
    home = Directory(lambda count: 0)
    home.keep({"a", "b", "liar", "c"}, 0.0)
    for number in range(40):
        home.report("a", (1, str(number)), Stock(1), 0.0)
    for number in range(1_000):
        home.report("liar", (9, str(number)), Stock(1), 0.0)
        home.find("liar", (8, str(number)), 1, 0.0)
    for number in range(40, 50):
        home.report("a", (1, str(number)), Stock(1), 0.0)
    assert all(home.find("b", (1, str(number)), 1, 0.0) for number in range(50))
    assert home.find("b", (9, "949"), 1, 0.0) is None
    assert home.find("b", (9, "950"), 1, 0.0) is not None


def test_interests_of_one_host_take_no_place_from_others() -> None:
    interests = HostInterests()
    interests.has_hosts(4)
    for number in range(2 * INTEREST_TOPICS_MAX):
        interests.add("liar", (number, "t"), 1, 0.0)
    assert len(interests) <= INTEREST_TOPICS_MAX // 2
    interests.add("a", (1, "mine"), 1, 0.0)
    assert interests.take((1, "mine"))
    while interests.forget(1_000, 10.0):
        pass
    assert (len(interests), interests._counts, interests._host_counts) == (0, {}, {})


def test_caps_that_one_host_asks_about_take_no_place_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cap_ledger, "CAPS_OF_HOME_MAX", 100)
    ledger = CapLedger()
    ledger.keep({"a", "b", "liar", "c"})
    for number in range(10):
        assert ledger.ask("a", CapAsk((1, str(number)), 1.0, 1, 0, 0, 1, True), 1.0, 0.0)
    for number in range(1_000):
        for is_for_nothing in (True, False):
            ledger.ask(
                "liar", CapAsk((9, f"{number}{is_for_nothing}"), 0.001, 1 - is_for_nothing, 0, 0, 1, True), 0.001, 0.0
            )
    assert len(ledger) <= 60
    for number in range(20):
        grant = ledger.ask("a", CapAsk((1, str(number)), 1.0, 1, 0, 0, 1, True), 1.0, 1.0)
        assert grant is not None
        assert grant.granted_count


def test_no_tokens_are_made_of_tokens_that_were_never_granted() -> None:
    ledger, now_s = CapLedger(), 0.0
    ledger.keep({"a", "liar"})
    granted = 0
    for step in range(1_000):
        now_s = step / 100
        held = 0 if step % 2 else 1
        ledger.ask("liar", CapAsk(TOPIC, 10.0, 0, held, COUNT_MAX, 1, False), 10.0, now_s)
        grant = ledger.ask("a", CapAsk(TOPIC, 10.0, 100, 0, 0, 1, True), 10.0, now_s)
        assert grant is not None
        granted += grant.granted_count
    assert granted <= 10.0 * now_s + 20


# ---- stocks that are not there ----


def seek(home: Directory, now_s: float) -> str:
    pointer = home.find("b", TOPIC, 1, now_s)
    return "" if pointer is None else pointer.host_id


def test_a_host_that_has_nothing_of_what_it_tells_keeps_nobody_from_the_items_of_others() -> None:
    home = Directory(lambda count: 0)
    home.report("liar", TOPIC, Stock(COUNT_MAX, 0, 0), 0.0)
    assert seek(home, 0.0) == "liar", "nobody knows better yet"
    home.report("a", TOPIC, Stock(1, 5, 1_000), 0.1)
    assert seek(home, 0.2) == "liar"
    now_s = DOUBT_MS / 1000
    assert seek(home, now_s) == "a", "what was taken from the first one would have been told by now"
    home.report("liar", TOPIC, Stock(COUNT_MAX, 0, 0), now_s)
    assert seek(home, now_s) == "liar", "it has said something new"


def test_who_found_nothing_at_the_only_host_is_not_sent_there_again_and_again() -> None:
    home = Directory(lambda count: 0)
    home.report("liar", TOPIC, Stock(COUNT_MAX), 0.0)
    assert seek(home, 0.0) == "liar"
    now_s = DOUBT_MS / 1000
    sent = [seek(home, now_s + step / 100) for step in range(100)]
    assert 1 <= sent.count("liar") <= 1 + 1_000 // DOUBTFUL_AGAIN_MS
    (hint,) = home.report("a", TOPIC, Stock(1), now_s + 1)
    assert hint[0] == "b", "it waits, and hears of the next one at once"
