"""The command `foqs` with claims ahead of consumers that last seconds, so that nobody waits long for a killed host.

They still outlast the leases of tests.support.faults.load, which are backed by them as those of 30 s are in production.
"""

from __future__ import annotations

import sys

from foqs.__main__ import main
from foqs.model import limits

AHEAD_LEASE_MS = 3_000
CLAIM_SLACK_MS = 3_000
CLAIM_MS_MAX = AHEAD_LEASE_MS + CLAIM_SLACK_MS
"""What the prefetch buffer of a killed host may hold is not to be had for this long."""
COMMAND = (sys.executable, "-P", __file__)

if __name__ == "__main__":
    assert limits.PREFETCH_HOLD_MS_MAX < CLAIM_SLACK_MS
    limits.AHEAD_LEASE_MS, limits.CLAIM_SLACK_MS = AHEAD_LEASE_MS, CLAIM_SLACK_MS
    main()
