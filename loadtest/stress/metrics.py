"""What a host says of itself on its metrics port."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Sequence

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support.faults import FaultError

_PATIENCE_S = 30.0
_POLL_S = 0.05


def families(port: int) -> Sequence[Metric]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=_PATIENCE_S) as answer:
        return list(text_string_to_metric_families(answer.read().decode()))


def gauge(port: int, name: str) -> float:
    """The sum of all its samples: of all shards."""
    return sum(sample.value for family in families(port) if family.name == name for sample in family.samples)


def wait_for_gauge(port: int, name: str, least: float, patience_s: float) -> None:
    """Return once it is at least so much. Raises FaultError."""
    until_s = time.monotonic() + patience_s
    while (found := gauge(port, name)) < least:
        if time.monotonic() > until_s:
            raise FaultError(f"{name} is {found:.0f} and not {least:.0f} after {patience_s:.0f} s")
        time.sleep(_POLL_S)
