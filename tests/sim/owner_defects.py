"""Defects of those who own shards: of the clocks they go by, and of what they know of one another."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from foqs.cluster.members import host_watch
from foqs.cluster.members.host_watch import HostWatch
from foqs.model import ids
from foqs.model.clock import Now
from foqs.model.shard_place import FoundShard, Tenure
from foqs.shard.state.engine import ShardState
from foqs.shard.writer.keeper import Keeper, ShardClock
from foqs.shard.writer.ownership import Ownership
from foqs.testing.fake_store import FakeStore
from tests.sim.chance import Profile
from tests.sim.planting import in_place_of, plant


def _has_takeovers(profile: Profile) -> bool:
    return profile.host_fault_rate > 0


def _has_contests(profile: Profile) -> bool:
    """Several hosts try to take one shard."""
    return profile.contends and _has_takeovers(profile)


_at = ShardClock.at


@in_place_of(ShardClock, "at")
def counts_leases_on_the_servers_clock(self: ShardClock, monotonic_s: float) -> Now:
    now = _at(self, monotonic_s)
    return Now(now.server_ms, now.server_ms)


_start = ShardClock.start


@in_place_of(ShardClock, "start")
def begins_the_steady_clock_anew(self: ShardClock, before_s: float, server_ms: int, _: int, after_s: float) -> None:
    _start(self, before_s, server_ms, 0, after_s)


@in_place_of(ShardClock, "start", _has_takeovers)
def counts_the_time_that_the_opening_took(
    self: ShardClock, before_s: float, server_ms: int, steady_ms: int, after_s: float
) -> None:
    """The last owner may have written later than the opening began."""
    _start(self, before_s, server_ms, steady_ms, after_s)
    self._steady_offset_ms = steady_ms - before_s * 1000


@in_place_of(ShardClock, "probed")
def moves_the_clock_on_by_a_slow_probe(self: ShardClock, before_s: float, server_ms: int, after_s: float) -> int:
    self._server_offset_ms = server_ms - before_s * 1000
    return 0


@in_place_of(ShardClock, "probed")
def follows_no_step_of_a_servers_clock(self: ShardClock, before_s: float, server_ms: int, after_s: float) -> int:
    return 0


@in_place_of(Now, "on_server")
def tells_the_ends_of_leases_by_the_steady_clock(self: Now, steady_ms: int) -> int:
    return steady_ms


@in_place_of(Keeper, "_is_durability_due", lambda profile: profile.undurable_rate > 0)
def checks_durability_only_at_the_opening(self: Keeper, now_s: float) -> bool:
    return False


@in_place_of(FakeStore, "_is_owners", _has_contests)
def kills_whoever_has_the_lock_of_a_dead_host(self: FakeStore, session_number: int, writer: Any) -> bool:
    return True


_saw = HostWatch.saw


def _saw_without_gaps(self: HostWatch, asked_s: float, answered_s: float, signs: Any) -> bool:
    with patch.object(host_watch, "HOST_WATCH_GAP_MS_MAX", 1 << 40):
        return _saw(self, asked_s, answered_s, signs)


def calls_hosts_dead_by_the_first_look_after_an_outage() -> Any:
    return patch.multiple(HostWatch, saw=_saw_without_gaps, missed=lambda self: None)


_two_methods = calls_hosts_dead_by_the_first_look_after_an_outage
plant(__name__, _two_methods.__name__, _two_methods, _has_takeovers)


@in_place_of(HostWatch, "is_dead", _has_takeovers)
def calls_nobody_dead(self: HostWatch, name: str, owner_since_s: float, now_s: float) -> bool:
    return False


_remember = Ownership._remember


@in_place_of(Ownership, "_remember")
def begins_the_keys_of_its_epoch_again(self: Ownership, shard: ShardState) -> None:
    _remember(self, shard)
    assert self.tenure is not None
    self.tenure = self.tenure._replace(last_key=shard.epoch << ids.SEQUENCE_BITS)


@in_place_of(Ownership, "_remember")
def forgets_the_epoch_that_it_had(self: Ownership, shard: ShardState) -> None:
    self.tenure = None


@in_place_of(Tenure, "goes_on", _has_takeovers)
def goes_on_under_an_epoch_that_is_not_the_shards(self: Tenure, found: FoundShard) -> bool:
    return found.transaction_number >= self.transaction_number
