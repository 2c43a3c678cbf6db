"""Metrics of the TLS of the port."""

from __future__ import annotations

from typing import NamedTuple

from foqs.host.metrics.metric_rows import MetricRow, gauge
from foqs.transport.server import ThriftServer
from foqs.transport.tls.certificates import Certificates


class TlsSources(NamedTuple):
    """The parts that the rows read."""

    server: ThriftServer
    certificates: Certificates


OF_TLS: tuple[MetricRow[TlsSources], ...] = (
    gauge("foqs_handshakes_waiting",
        "TLS handshakes that wait for their turn, because all together may take a quarter of the event loop's time.",
        lambda of: of.server.handshakes_waiting),
    gauge("foqs_certificate_expires_seconds",
        "Time until the first of the host's certificates expires; negative after that. A file that is replaced is read "
        "within a minute.",
        lambda of: of.certificates.left_s),
)  # fmt: skip
