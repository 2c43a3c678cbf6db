"""Variables that Kubernetes sets in every container for each service. They are not settings of a host.

A service named `foqs` brings FOQS_PORT=tcp://10.0.0.7:7600 and a dozen others, and one named `foqs-metrics` brings
FOQS_METRICS_PORT. No setting of a host has such a value. `enableServiceLinks: false` turns them off.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_LINK = re.compile(r"(tcp|udp|sctp)://[^/]+:\d+")


def without_service_links(values: Mapping[str, object], prefix: str) -> tuple[dict[str, object], list[str]]:
    """The settings of an environment by key, and a warning for each variable that is a link to a service."""
    links = {key: value for key, value in values.items() if isinstance(value, str) and _LINK.fullmatch(value)}
    warnings = [
        f"{prefix}{key.upper()} = {value} is a link to a service that Kubernetes has set, and is left alone: set "
        f"{key} in the file or by flag, or enableServiceLinks: false in the pod"
        for key, value in links.items()
    ]
    return {key: value for key, value in values.items() if key not in links}, warnings
