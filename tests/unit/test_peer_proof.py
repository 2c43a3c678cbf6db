"""Who can prove to be a host: what an attacker can make of hosts that call each other, by a search over its messages.

The attacker knows all ids and no secret. It calls both hosts, and is what both reach when they call each other; so it
sees, keeps back, forges and replays all that is said. What it can say is made of what it has seen.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import pytest

from foqs.cluster.members.backends import zookeeper_backend
from foqs.model.cluster import HostRow
from foqs.model.errors import FoqsError
from foqs.model.old_proof import CHALLENGE_BYTES, proof_of, proved, said_hello
from foqs.model.peer_proof import (
    JOIN_MS_MAX,
    NONCE_BYTES,
    OLD_PROOF,
    PROOF,
    Greeting,
    PeerLink,
    PeerRefusedError,
    greeted,
    is_of_callee,
    joined,
)
from foqs.model.secret import Secret

SECRET = Secret(b"s" * 32)
HOSTS = ("a#1", "b#1")
CONNECTIONS_MAX = 2
"""Which the attacker opens to each host, and which each host opens to what it takes for the other one."""
STEPS_MAX = 5


class State(NamedTuple):
    """Of both hosts, and what the attacker has seen."""

    calls: tuple[tuple[str, str, tuple[bytes, ...]], ...] = ()
    """To whom, as whom, and what was said: the nonce of the caller, then that of the host."""
    dials: tuple[tuple[str, bytes, bytes], ...] = ()
    """Who dials, its nonce, and the nonce that it was given, if any."""
    seen: frozenset[bytes] = frozenset()
    broken: str = ""


def nonce(name: str, size: int = NONCE_BYTES) -> bytes:
    return name.encode().ljust(size, b".")


def with_call(state: State, at: int, call: tuple[str, str, tuple[bytes, ...]], *seen: bytes, broken: str = "") -> State:
    calls = (*state.calls[:at], call, *state.calls[at + 1 :])
    return state._replace(calls=calls, seen=state.seen | set(seen), broken=broken or state.broken)


def other(host: str) -> str:
    return HOSTS[1 - HOSTS.index(host)]


def of_kind(state: State, size: int) -> list[bytes]:
    """What it may send: what it has seen, and its own."""
    return sorted({part for part in state.seen if len(part) == size} | {nonce("attacker", size)})


def steps(state: State) -> Iterator[State]:
    """All that the attacker can do next, by the proof of today."""
    for host, claimed in product(HOSTS, HOSTS):
        if sum(call[0] == host for call in state.calls) < CONNECTIONS_MAX:
            for sent, callee in product(of_kind(state, NONCE_BYTES), HOSTS):
                mine = nonce(f"{host}{len(state.calls)}")
                link = PeerLink(is_fresh=True, since_s=0.0)
                try:
                    greeted(link, Greeting("c", claimed, callee, sent, mine), PROOF, host)
                except PeerRefusedError:
                    continue
                yield with_call(state, len(state.calls), (host, claimed, (sent, mine)), mine)
    for at, (host, claimed, said) in enumerate(state.calls):
        if len(said) == 2:
            for proof in of_kind(state, 32):
                link = PeerLink(is_fresh=False, since_s=0.0)
                link.greeting = Greeting("c", claimed, host, *said)
                try:
                    answer = joined(link, proof, [SECRET], 0.0)
                except PeerRefusedError:
                    continue
                genuine = any(dial == (claimed, said[0], said[1]) for dial in state.dials)
                broken = "" if genuine else f"{host} takes the attacker for {claimed}"
                yield with_call(state, at, (host, claimed, (*said, proof)), answer, broken=broken)
    yield from dial_steps(state)


def dial_steps(state: State) -> Iterator[State]:
    """A host calls the other one, and reaches the attacker, which answers as it likes."""
    for host in HOSTS:
        if sum(dial[0] == host for dial in state.dials) < CONNECTIONS_MAX:
            mine = nonce(f"{host}-dial{len(state.dials)}")
            yield state._replace(dials=(*state.dials, (host, mine, b"")), seen=state.seen | {mine})
    for at, (host, mine, given) in enumerate(state.dials):
        if not given:
            for answer in of_kind(state, NONCE_BYTES):
                said = Greeting("c", host, other(host), mine, answer)
                dials = (*state.dials[:at], (host, mine, answer), *state.dials[at + 1 :])
                yield state._replace(dials=dials, seen=state.seen | {said.caller_proof(SECRET)})
        else:
            said = Greeting("c", host, other(host), mine, given)
            for proof in of_kind(state, 32):
                genuine = any(call[:2] == (other(host), host) and call[2][:2] == (mine, given) for call in state.calls)
                if is_of_callee(said, proof, SECRET) and not genuine:
                    yield state._replace(broken=f"{host} takes the attacker for {other(host)}")


def old_steps(state: State) -> Iterator[State]:
    """All that the attacker can do next by hello and prove, with hosts that take everybody's hello."""
    for host, claimed in product(HOSTS, HOSTS):
        if sum(call[0] == host for call in state.calls) < CONNECTIONS_MAX:
            for sent in of_kind(state, CHALLENGE_BYTES):
                mine = nonce(f"{host}{len(state.calls)}", CHALLENGE_BYTES)
                said_hello(PeerLink(is_fresh=True, since_s=0.0), claimed, sent, mine)
                answer = proof_of(SECRET, host, claimed, sent)
                yield with_call(state, len(state.calls), (host, claimed, (sent, mine)), mine, answer)
    for at, (host, claimed, said) in enumerate(state.calls):
        if len(said) == 2:
            for proof in of_kind(state, 32):
                link = PeerLink(is_fresh=False, since_s=0.0)
                link.challenge = said[1]
                try:
                    proved(link, host, claimed, said[1], proof, SECRET, 0.0)
                except PeerRefusedError:
                    continue
                yield with_call(state, at, (host, claimed, (*said, proof)), broken=f"{host} takes it for {claimed}")


def search(of: object, steps_max: int = STEPS_MAX) -> tuple[set[State], list[State]]:
    """All states within so many steps, and those in which the attacker is taken for a host."""
    frontier, found = [State()], {State()}
    for _ in range(steps_max):
        news = {after for state in frontier if not state.broken for after in of(state)} - found  # type: ignore[operator]
        found |= news
        frontier = sorted(news)
    return found, [state for state in found if state.broken]


def test_the_search_finds_how_hello_and_prove_are_broken_by_reflection_and_by_relay() -> None:
    _, broken = search(old_steps, 3)
    said = {state.broken for state in broken}
    assert said == {f"{host} takes it for {claimed}" for host in HOSTS for claimed in HOSTS}
    _, in_two = search(old_steps, 2)
    assert not in_two, "it takes three messages"


def test_no_message_of_an_attacker_makes_it_a_host() -> None:
    found, broken = search(steps)
    assert not broken
    assert len(found) > 10_000, "the search has looked at less than it says"


def echoed(said: Greeting, secret: Secret) -> bytes:
    """A proof of the caller that does not say of which side it is."""
    return said.callee_proof(secret)


def replayed(said: Greeting, secret: Secret) -> bytes:
    """A proof of the caller that is not over what the host has sent."""
    return hmac.digest(secret.reveal(), said.caller_id.encode() + said.callee_id.encode(), "sha256")


@pytest.mark.parametrize("weak", [echoed, replayed])
def test_the_search_finds_what_is_wrong_with_weaker_proofs(
    weak: Callable[[Greeting, bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Greeting, "caller_proof", weak)
    _, broken = search(steps)
    assert broken


def link_of(said: Greeting, me: str = "b#1") -> PeerLink:
    link = PeerLink(is_fresh=True, since_s=0.0)
    greeted(link, said, PROOF, me)
    return link


SAID = Greeting("c", "a#1", "b#1", nonce("a"), nonce("b"))


def test_two_hosts_of_one_cluster_know_each_other() -> None:
    link = link_of(SAID)
    answer = joined(link, SAID.caller_proof(SECRET), [SECRET], 0.0)
    assert is_of_callee(SAID, answer, SECRET)
    assert link.host_id == "a#1"


@pytest.mark.parametrize(
    "other_said",
    [
        SAID._replace(cluster="d"),
        SAID._replace(caller_id="c#1"),
        SAID._replace(callee_id="c#1"),
        SAID._replace(nonce_caller=nonce("c")),
        SAID._replace(nonce_callee=nonce("c")),
        SAID._replace(binding=b"another certificate"),
    ],
)
def test_a_proof_is_of_no_other_cluster_host_connection_or_channel(other_said: Greeting) -> None:
    link = link_of(SAID)
    with pytest.raises(PeerRefusedError, match="not the proof"):
        joined(link, other_said.caller_proof(SECRET), [SECRET], 0.0)
    assert not is_of_callee(SAID, other_said.callee_proof(SECRET), SECRET)
    with pytest.raises(PeerRefusedError, match="once"):
        joined(link, SAID.caller_proof(SECRET), [SECRET], 0.0)


def test_the_proof_of_one_side_is_none_of_the_other() -> None:
    with pytest.raises(PeerRefusedError):
        joined(link_of(SAID), SAID.callee_proof(SECRET), [SECRET], 0.0)
    assert not is_of_callee(SAID, SAID.caller_proof(SECRET), SECRET)


def test_a_proof_that_comes_late_is_none() -> None:
    with pytest.raises(PeerRefusedError, match="within"):
        joined(link_of(SAID), SAID.caller_proof(SECRET), [SECRET], JOIN_MS_MAX / 1000 + 0.001)


@pytest.mark.parametrize(
    ("said", "version", "words"),
    [
        (SAID._replace(callee_id="c#1"), PROOF, "is not here"),
        (SAID._replace(caller_id="b#1"), PROOF, "this host itself"),
        (SAID, 1, "version is 1"),
        (SAID._replace(nonce_caller=b"short"), PROOF, "nonce has 5 bytes"),
        (SAID._replace(caller_id=""), PROOF, "has 1..255 bytes"),
        (SAID._replace(caller_id="x" * 256), PROOF, "has 1..255 bytes"),
    ],
)
def test_what_is_no_greeting_is_refused(said: Greeting, version: int, words: str) -> None:
    with pytest.raises(FoqsError, match=words):
        greeted(PeerLink(is_fresh=True, since_s=0.0), said, version, "b#1")


def test_greet_comes_first_and_once_and_join_after_it() -> None:
    for link in (PeerLink(is_fresh=False, since_s=0.0), link_of(SAID)):
        with pytest.raises(PeerRefusedError, match="first call"):
            greeted(link, SAID, PROOF, "b#1")
    with pytest.raises(PeerRefusedError, match="after greet"):
        joined(PeerLink(is_fresh=True, since_s=0.0), SAID.caller_proof(SECRET), [SECRET], 0.0)


def test_what_begins_by_one_proof_does_not_end_by_the_other() -> None:
    with pytest.raises(PeerRefusedError, match="not the proof"):
        proved(link_of(SAID), "b#1", "a#1", b"", proof_of(SECRET, "a#1", "b#1", b""), SECRET, 0.0)
    link = PeerLink(is_fresh=True, since_s=0.0)
    said_hello(link, "a#1", b"0" * 16, b"1" * 16)
    with pytest.raises(PeerRefusedError, match="not the proof"):
        joined(link, SAID.caller_proof(SECRET), [SECRET], 0.0)


def test_a_node_of_zookeeper_that_does_not_tell_the_proof_is_of_an_older_build() -> None:
    row = HostRow("h#1", "h:1", 1, 2, tier="gold", proof=PROOF)
    told = zookeeper_backend._encode(row)
    assert zookeeper_backend._decode("path", "h#1", told) == row
    older = json.dumps({name: value for name, value in json.loads(told).items() if name != "proof"}).encode()
    assert zookeeper_backend._decode("path", "h#1", older).proof == OLD_PROOF


@pytest.mark.parametrize("peer_address", ["h:2", "", None])
def test_a_node_of_zookeeper_tells_the_address_for_hosts_and_an_older_build_tells_none(
    peer_address: str | None,
) -> None:
    row = HostRow("h#1", "h:1", 1, 2, tier="gold", proof=PROOF, peer_address=peer_address)
    told = zookeeper_backend._encode(row)
    assert zookeeper_backend._decode("path", "h#1", told) == row
    older = json.dumps({name: value for name, value in json.loads(told).items() if name != "peer_address"}).encode()
    assert zookeeper_backend._decode("path", "h#1", older).peer_address is None
