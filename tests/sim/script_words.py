"""The words for what a script does to a shard, for traces."""

from __future__ import annotations

from foqs.storage.shard.formats import unpack_items
from foqs.testing.fake_server import Script


def shown(script: Script) -> str:
    """What the script inserts, changes and deletes."""
    parts = [f"{script.mark.transaction_number} of epoch {script.epoch}"]
    parts += [f"insert {row.key:x} lane {row.lane} due {row.due_at}" for row in script.inserts]
    parts += [f"promote {row.key:x}" for row in script.promoted]
    parts += [f"pack {pack_id:x} of {' '.join(f'{row.key:x}' for row in unpack_items(contents))}"
              for pack_id, contents in script.packs_new]  # fmt: skip
    if script.tombstone is not None:
        parts.append(f"tombstone {script.tombstone.id:x} of {' '.join(f'{key:x}' for key in script.tombstone.keys)}")
    parts += [f"claim {claim:x} {[f'{key:x}:{number}' for key, number in entries]} until {due_at}{' ahead' * ahead}"
              for claim, due_at, ahead, entries in script.claims]  # fmt: skip
    parts += [f"reclaim {claim:x} {[f'{key:x}:{number}' for key, number in entries]}"
              for claim, entries in script.claims_rewritten]  # fmt: skip
    parts += [f"rewrite {row.key:x} lane {row.lane} due {row.due_at} deliveries {row.deliveries}"
              for row in script.rewrites]  # fmt: skip
    for name in ("wakes", "wakes_in_place", "deletes", "packs_gone", "tombstones_gone", "claims_gone", "look_ups"):
        keys = getattr(script, name)
        if keys:
            parts.append(f"{name} {' '.join(f'{key:x}' for key in keys)}")
    return "; ".join(parts)
