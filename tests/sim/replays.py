"""What hosts of a run let in without tokens while they do not reach the meta database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foqs.host.admission.quotas import Quotas
    from tests.sim.world import World


def note_replays(world: World, quotas: Quotas) -> None:
    """Note what the host lets in without tokens while the meta database does not answer it."""
    replay = quotas._replay

    def noted(hosted: Any, count: int, now_ms: int) -> Any:
        charge = replay(hosted, count, now_ms)
        if quotas.is_away or hosted.is_refused(now_ms):
            world.meta.replays.append((world.now_ms(), count))
        return charge

    quotas.__dict__["_replay"] = noted
