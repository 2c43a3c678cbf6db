"""The quota of a namespace in a run: what all hosts let in within any minute, which is short here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from foqs.model import grants
from tests.histories.history import Call, Outcome, Verb
from tests.sim.caller import NAMESPACE

if TYPE_CHECKING:
    from tests.sim.chance import Profile
    from tests.sim.world import World


def quota_times(profile: Profile) -> dict[str, Any]:
    """A minute is so short that a run has several of them."""
    if not profile.quota_items:
        return {}
    return {
        "QUOTA_WINDOW_MS": 1_000,
        "VALID_MS": 200,
        "VALID_SCARCE_MS": 100,
        "VALID_PLENTY_MS": 400,
        "HOLD_MS": 600,
    }


def is_exact(profile: Profile) -> bool:
    """Whether no host has a reason to let in anything without tokens."""
    return bool(profile.quota_items) and not (profile.meta_fault_rate or profile.slow_share)


def quota_problems(world: World) -> Iterator[str]:
    """Calls that were made and answered within one minute had no more items than the quota.

    A host lets a call in somewhen between the two. Recovered namespaces have another quota. What a host lets in while
    the meta database does not answer it comes on top, for others may have tokens meanwhile.
    """
    profile = world.profile
    if not is_exact(profile) or world.restored:
        return
    made = [(call.invoked_at_ms, call.returned_at_ms or 0, _made_count(call)) for call in world.calls if _is_ours(call)]
    world.counts["items held against a quota"] += sum([count for _, _, count in made])
    for from_ms, _, _ in made:
        until_ms = from_ms + grants.QUOTA_WINDOW_MS
        let_in = sum([count for began_ms, ended_ms, count in made if from_ms <= began_ms and ended_ms <= until_ms])
        replayed = sum([count for at_ms, count in world.meta.replays if from_ms <= at_ms <= until_ms])
        if let_in > profile.quota_items + replayed:
            yield (
                f"{let_in} items were let in from {from_ms} to {until_ms}, {replayed} of them at most by hosts that "
                f"were cut off, and the quota is {profile.quota_items}"
            )
            return


def _is_ours(call: Call) -> bool:
    return (
        call.verb is Verb.ENQUEUE
        and call.outcome is Outcome.OK
        and any(put.topic.startswith(f"{NAMESPACE}/") for put in call.asked)
    )


def _made_count(call: Call) -> int:
    repeats = set(call.duplicates)
    return sum([bool(item_id) and at not in repeats for at, item_id in enumerate(call.ids)])
