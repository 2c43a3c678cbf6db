"""What a seed decides: the limits of a run, which faults there are and how often, every delay."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from foqs.model import ids
from foqs.model.limits import KIB, MIB

_PAUSE_MS_MAX = 450
"""A host that is stopped while it reads a clock reads it wrong by as much (tests.sim.nemesis)."""
_FAR_SHARE = 0.1
_META_THREADS = ("membership", "namespaces", "meta-call", "quotas", "permits")


class Layout(Enum):
    """Where the shards are, by the addresses in their URLs and by what fails together."""

    APART = "each on a server of its own"
    TOGETHER = "all on one server"
    SPREAD = "behind one address, which leads to a machine for each"


@dataclass(frozen=True, slots=True)
class Profile:
    """Shares are of all transactions or calls, rates per virtual second."""

    shard_count: int
    client_count: int
    load_s: float
    slow_share: float = 0.0
    slow_s_max: float = 0.0
    fates: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """Of FAILED (whatever the reason), LOST_BEFORE, LOST_AFTER and LATE."""
    server_fault_rate: float = 0.0
    host_fault_rate: float = 0.0
    drain_rate: float = 0.0
    meta_fault_rate: float = 0.0
    undurable_rate: float = 0.0
    skew_ms_max: int = 0
    jump_ms_max: int = 0
    answer_loss_share: float = 0.0
    cancel_share: float = 0.0
    has_wrong_hints: bool = False
    """Whatever is inserted is said to be short-lived."""
    limits: dict[str, Any] = field(default_factory=dict)
    layout: Layout = field(default=Layout.APART, repr=False)
    quota_items: int = field(default=0, repr=False)
    """Of one namespace, in a minute; 0 where it has no quota to speak of."""
    has_short_reads: bool = field(default=False, repr=False)
    """Servers return a few rows of a read now and then, and nothing tells that there are more."""
    is_cluster: bool = field(default=False, repr=False)
    has_steady_caps: bool = field(default=False, repr=False)
    """Hosts share low caps that stay as they are, and clients want more than these let through."""
    """Several hosts serve at the same time (tests.sim.cluster)."""
    contends: bool = field(default=False, repr=False)
    """Every host wants every shard, whatever is planned: then the locks alone decide."""

    @property
    def disturbed(self) -> bool:
        return bool(
            self.slow_share or sum(self.fates) or self.server_fault_rate or self.host_fault_rate
            or self.drain_rate or self.meta_fault_rate or self.undurable_rate
        )  # fmt: skip

    @property
    def tolerance_ms(self) -> int:
        """By how much clocks may differ, steps aside: a server's is read as exactly as its answer is fast."""
        slow_ms = round(self.slow_s_max * 2_000) if self.slow_share else 0
        stopped_ms = _PAUSE_MS_MAX if self.host_fault_rate else 0
        return 25 + self.skew_ms_max + slow_ms + stopped_ms


def make_profile(chance: random.Random) -> Profile:
    """One in five runs is quiet, so that what holds without faults is checked to the millisecond."""
    quiet = chance.random() < 0.2

    def sometimes(value: float, share: float = 0.5) -> float:
        return 0.0 if quiet or chance.random() >= share else value

    host_fault_rate = sometimes(chance.choice([0.5, 2.0]))
    profile = Profile(
        shard_count=chance.choice([1, 1, 2, 3]),
        client_count=chance.choice([2, 3, 4]),
        load_s=chance.choice([1.0, 2.0, 5.0]),
        slow_share=sometimes(0.05),
        slow_s_max=chance.choice([0.1, 0.5, 1.5]),
        fates=(sometimes(0.03), sometimes(0.01), sometimes(0.02), sometimes(0.01)),
        server_fault_rate=sometimes(0.5, 0.4),
        host_fault_rate=host_fault_rate,
        drain_rate=0.0 if host_fault_rate or chance.random() < 0.6 else 1.0,
        meta_fault_rate=sometimes(0.2, 0.3),
        skew_ms_max=int(sometimes(400, 0.3)),
        jump_ms_max=int(sometimes(chance.choice([50, 1_500]), 0.2)),
        answer_loss_share=sometimes(0.02),
        cancel_share=0.0 if chance.random() < 0.5 else 0.03,
        limits=make_limits(chance),
    )
    # Drawn apart, so that what is drawn after it stays as it was in the recorded seeds.
    apart = random.Random(f"clocks {profile!r}")
    stepped_ms = 0 if quiet or apart.random() < 0.7 else apart.choice([600_000, 7_200_000])
    undurable_rate = 1.0 if not quiet and apart.random() < 0.2 else 0.0
    has_wrong_hints = apart.random() < 0.3
    return replace(
        profile,
        jump_ms_max=stepped_ms or profile.jump_ms_max,
        undurable_rate=undurable_rate,
        layout=apart.choice(list(Layout)),
        has_wrong_hints=has_wrong_hints,
        quota_items=_quota_items(random.Random(f"quota {profile!r}")),
        has_short_reads=not quiet and random.Random(f"short reads {profile!r}").random() < 0.15,
        contends=apart.random() < 0.5,
    )


def far_meta_s(seed: int) -> float:
    """How far away the meta database of a cluster is: near, in nine of ten."""
    chance = random.Random(f"{seed}/meta latency")
    return chance.choice([0.02, 0.05]) if chance.random() < _FAR_SHARE else 0.0


def _quota_items(chance: random.Random) -> int:
    """One run in six has a quota."""
    return chance.choice([15, 30]) if chance.random() < 1 / 6 else 0


def make_limits(chance: random.Random) -> dict[str, Any]:
    """A tenth of the times of production, and sizes so small that every edge is met often."""
    sizes, times = _sizes(chance), _times(chance)
    # Drawn apart, so that what is drawn after them stays as it was in the recorded seeds.
    apart = repr(sizes)
    return {
        **sizes,
        **_sizes_of_packs(random.Random(apart)),
        **_rows_read_and_promoted(random.Random(f"reads {apart}")),
        **_keys_of_an_epoch(random.Random(f"keys {apart}")),
        **_sizes_of_dedup(random.Random(f"dedup {apart}")),
        **_sizes_of_images(random.Random(f"images {apart}")),
        **times,
    }


def _sizes(chance: random.Random) -> dict[str, Any]:
    pick = chance.choice
    return {
        "WINDOW_ITEMS_MAX": pick([8, 16, 40]),
        "WINDOW_ITEMS_MIN": 8,
        "WINDOWS_OF_SHARD_ITEMS_MAX": pick([16, 1_000]),
        "TRANSACTION_INSERTS_MAX": pick([3, 20, 2_000]),
        "TRANSACTION_CLAIMS_MAX": pick([2, 10, 2_000]),
        "TRANSACTION_CHANGES_MAX": pick([1, 5, 4_000]),
        "TRANSACTION_EXTENSIONS_MAX": pick([1, 500]),
        "TRANSACTION_REFILLS_MAX": pick([1, 64]),
        "TRANSACTION_LOOK_UPS_MAX": pick([1, 300]),
        "TRANSACTION_FETCH_BYTES_MAX": pick([300, 16 * MIB]),
        "TRANSACTION_INSERT_BYTES_MAX": pick([300, 8 * MIB]),
        "SWEEP_CHUNK_ITEMS": pick([1, 4, 1_000]),
        "EXPIRY_SCAN_ITEMS": pick([3, 1_000]),
        "EXPIRY_SCAN_PAUSE_MS": pick([100, 1_000]),
        "RESIDENT_BYTES_MAX": pick([0, 3_000, 32 * MIB]),
        "OPEN_LEASES_MAX": pick([10, 250_000]),
        "TIMER_ENTRIES_SPARE": pick([0, 4_000]),
        "CLAIM_REWRITE_ITEMS_MIN": pick([2, 64]),
        "CLAIM_SPARSE_RATIO": 2,
        "ENQUEUE_BUFFER_ITEMS_MAX": pick([12, 20_000]),
        "PLACEMENT_RUN_ITEMS": pick([1, 10, 1_000]),
        "PREFETCH_ITEMS_PER_TOPIC_MAX": pick([0, 4, 2_000]),
        "PREFETCH_BYTES_MAX": pick([200, 64 * MIB]),
        "DEQUEUE_ANSWER_BYTES_MAX": pick([150, 12 * MIB]),
        "PAGE_BYTES_MAX": pick([150, 2 * MIB]),
        "TOPICS_PER_SHARD_MAX": pick([3, 200_000]),
    }


def _times(chance: random.Random) -> dict[str, Any]:
    pick = chance.choice
    return {
        "TICK_MS": pick([20, 40]),
        "LEASE_MS_MIN": 100,
        "LEASE_MS_DEFAULT": 600,
        "CLAIM_SLACK_MS": 400,
        "PREFETCH_HOLD_MS_MAX": pick([80, 250]),
        "PREFETCH_SWEEP_MS": 60,
        "AHEAD_LEASE_MS": 500,
        "CLAIM_REWRITE_EVERY_MS": 200,
        "EXPIRY_LAP_PAUSE_MS": 200,
        "TOPIC_IDLE_MS": pick([200, 30_000]),
        "CLAIM_WAIT_MS_MAX": 600,
        "CALL_MS_MAX": 3_000,
        "COUNT_WAIT_MS_MAX": 1_000,
        "HEARTBEAT_MS": 250,
        "CENSUS_MS_MAX": 800,
        "CENSUS_POLL_MS": 20,
        "CENSUS_EXPIRY_MS": 1_500,
        "META_CALL_MS_MAX": 1_500,
        "HOST_DEAD_MS": 1_250,
        "HOST_WATCH_GAP_MS_MAX": 500,
        "RETURN_MS_MAX": 800,
        "META_SILENT_MS_MAX": 6_000,
        # Shards of living hosts stay where they are; tests.sim.cluster has them move.
        "SETTLED_MS": 10**9,
        "BUSY_BEAT_MS": 60,
        "NEGLECTED_MS": 500,
        "RELEASE_MS_MAX": 400,
        "LEAVE_MS_MAX": 1_500,
        "CLOCK_PROBE_MS": pick([300, 10_000]),
        "CLOCK_RETRY_MS": 50,
        "STEADY_WRITE_MS": 200,
        "DURABILITY_CHECK_MS": 500,
        "REOPEN_PAUSE_MS": 60,
        "OWNER_RETURN_MS": 60,
        "REOPEN_TRIES_MAX": pick([5, 120]),
        "BREAKER_WINDOW_MS": 500,
        "BREAKER_STALL_MS": 150,
        "BREAKER_MEAN_MS_MAX": 80,
        "BREAKER_PROBE_MS": 60,
        "DRAIN_MS_MAX": pick([300, 5_000]),
    }


def _rows_read_and_promoted(chance: random.Random) -> dict[str, Any]:
    """The fastest transaction takes 0.2 ms."""
    pick = chance.choice
    return {
        "READ_US_TARGET": pick([1, 1_000, 3_000]),
        "LEASED_RUN_MIN": pick([1, 3]),
        "READ_ROWS_FIRST": pick([3, 1_000]),
        "READ_ROWS_MIN": pick([1, 5]),
        "READ_ROWS_MAX": pick([10, 8_000]),
        "PROMOTE_OLD_ITEMS": pick([1, 4, 100]),
        "PROMOTE_OLD_EVERY_MS": 20,
        "PROMOTE_OLD_RATIO": pick([1, 4]),
    }


def _keys_of_an_epoch(chance: random.Random) -> dict[str, Any]:
    """In half of the runs an epoch ends after few keys."""
    keys_count = 1 << ids.SEQUENCE_BITS
    return {
        "KEYS_LEFT_TO_RENEW": keys_count - chance.choice([10, 200, keys_count // 2, keys_count // 2]),
        "EPOCH_RETRY_MS": 100,
    }


def _sizes_of_dedup(chance: random.Random) -> dict[str, Any]:
    pick = chance.choice
    return {
        "TABLE_IDS_FIRST": pick([1, 3, 50]),
        "TABLE_IDS_RATIO": pick([2, 16]),
        "TRANSACTION_DEDUP_BLOCKS_MAX": pick([1, 256]),
        "FORGET_IDS": 128,
        "SEEN_READ_ROWS": pick([1, 4, 256]),
        "SEEN_SLICE_IDS": pick([1, 2_000]),
        "SEEN_RETRY_MS": 60,
        "DEDUP_WAIT_MS_MAX": pick([200, 2_000]),
        "SMALL_TABLE_IDS_MAX": pick([1, 8, 3_200]),
        "BUCKET_IDS": pick([2, 50]),
        "DEDUP_FILTERS_OF_SHARD_BYTES_MAX": pick([3_000, 6_000, 64 * MIB, 64 * MIB]),
        "DEDUP_IDS_KEPT": pick([5, 20]),
        "SHRINK_BUCKETS_MAX": pick([1, 512]),
    }


def _sizes_of_images(chance: random.Random) -> dict[str, Any]:
    pick = chance.choice
    return {
        "IMAGE_IDS_MIN": pick([1, 20, 10_000]),
        "IMAGE_STEPS": pick([1, 4]),
        "IMAGE_PAUSE_MS": pick([0, 25, 100]),
        "IMAGE_PARTS_GONE": pick([1, 16]),
        "IMAGE_PART_BUCKETS": pick([1, 3, 408]),
        "SEEN_READ_PARTS": pick([1, 8]),
    }


def _sizes_of_packs(chance: random.Random) -> dict[str, Any]:
    pick = chance.choice
    return {
        "PACK_ITEMS_MIN": pick([1, 2, 8]),
        "PACK_BYTES_MAX": pick([60, 300, 64 * KIB]),
        "PACK_ITEM_BYTES_MAX": pick([260, 4 * KIB]),
        "PACK_MS_MAX": pick([50, 300, 3_000]),
        "PROMOTE_OLD_ITEMS_MAX": pick([1, 5, 500]),
        "PACKS_OF_HOST_BYTES_MAX": pick([3_000, 128 * MIB]),
        "PACKS_OF_SHARD_BYTES_MAX": pick([2_000, 16 * MIB]),
        "PACKS_OF_SHARD_MAX": pick([2, 10, 4_000]),
        "TRANSACTION_CONTENTS_BYTES_MAX": pick([150, 17 * MIB]),
        "TOPICS_PER_TICK_MAX": pick([1, 250]),
        "PACKED_ITEMS_KEPT_MAX": pick([0, 0, 10, 20_000]),
        "TOMBSTONES_KEPT_MAX": pick([0, 3, 2_000]),
        "TOMBSTONE_KEYS_KEPT_MAX": pick([5, 200_000]),
    }


class Delays:
    """Of threads, network and timers. `calm` ends all but the ordinary ones."""

    def __init__(self, chance: random.Random, profile: Profile) -> None:
        self._chance = chance
        self._profile = profile
        self.calm = False
        self.far_s = 0.0
        """What a statement on the meta database, and its answer, take longer, with its distance."""

    def thread(self, name: str) -> tuple[float, float]:
        there_s, back_s = self._delay(), self._delay()
        if self.far_s and name.startswith(_META_THREADS):
            return there_s + self.far_s, back_s + self.far_s
        return there_s, back_s

    def network(self) -> float:
        return self._delay()

    def lateness(self) -> float:
        return self._chance.random() * 0.0005

    def _delay(self) -> float:
        chance = self._chance
        if not self.calm and chance.random() < self._profile.slow_share:
            return chance.random() * self._profile.slow_s_max
        return 0.0001 + chance.random() ** 3 * 0.003
