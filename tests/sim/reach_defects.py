"""Defects of hosts among each other: of cut links, of peers that raise anything, and of what homes are told late."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from foqs.cluster.homes.interests import Interests
from foqs.cluster.homes.probes import Probes
from foqs.cluster.homes.topic_homes import TopicHomes
from foqs.cluster.peers.guarded_peers import GuardedPeers
from foqs.model.stocks import Pointer, Topic
from tests.sim.planting import in_place_of

_keep = Interests.keep


@in_place_of(Probes, "take_round")
def asks_nobody_for_what_is_sought_in_vain(self: Probes, *_: Any) -> dict[str, list[Topic]]:
    return {}


@in_place_of(Probes, "take_round")
def asks_the_same_host_again_and_again(self: Probes, hosts: Iterable[str], *_: Any) -> dict[str, list[Topic]]:
    others = [host_id for host_id in hosts if host_id != self._me]
    return {others[0]: list(self._probed)} if others else {}


@in_place_of(TopicHomes, "_find_here")
def tells_who_asks_around_of_others_items_alone(
    self: TopicHomes, host_id: str, topic: Topic, now_s: float
) -> Pointer | None:
    return self.directory.peek(host_id, topic, now_s)


@in_place_of(Interests, "keep")
def forgets_what_was_found_for_calls_that_do_not_wait(
    self: Interests, pointers: Iterable[Pointer], now_s: float, for_ms: float = 0.0
) -> None:
    if not for_ms:
        _keep(self, pointers, now_s)


@in_place_of(TopicHomes, "_ask_for")
async def drops_what_other_hosts_say_that_they_have(
    self: TopicHomes, host_id: str, topics: Mapping[Topic, int]
) -> None:
    await self._call(host_id, lambda peer: peer.seek(topics))


@in_place_of(GuardedPeers, "_failed")
def lets_any_exception_of_a_peer_through(self: GuardedPeers, host_id: str, verb: str, cause: Exception) -> Exception:
    raise cause
