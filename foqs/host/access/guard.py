"""The refusal to serve a network in which everybody could do everything, or read the metrics."""

from __future__ import annotations

from typing import Protocol

import structlog

from foqs.model.access import AccessMode
from foqs.model.errors import InvalidArgumentError
from foqs.model.host_addresses import is_loopback

_log = structlog.get_logger(__name__)


class Openness(Protocol):
    """The settings of a host that say who reaches its ports."""

    @property
    def listen_address(self) -> str: ...
    @property
    def allow_open(self) -> bool: ...
    @property
    def metrics_address(self) -> str: ...
    @property
    def metrics_port(self) -> int: ...
    @property
    def metrics_token_file(self) -> str: ...
    @property
    def metrics_open(self) -> bool: ...


def check_is_guarded(settings: Openness, mode: AccessMode) -> None:
    """Check who reaches the ports of a host that starts. Raises InvalidArgumentError.

    Other machines reach the port only if access is enforced, or if the operator allows it. They read metrics without a
    token only if access is not enforced, or if the operator allows it.
    """
    if mode is AccessMode.ENFORCED:
        _check_metrics(settings)
    elif not is_loopback(settings.listen_address):
        _check_port(settings, mode)


def _check_port(settings: Openness, mode: AccessMode) -> None:
    if not settings.allow_open:
        raise InvalidArgumentError(
            f"listen_address = {settings.listen_address} can be reached from other machines, and access is "
            f"{mode.name.lower()}: everybody who reaches the port could use and administer every namespace. Make an "
            "administrator and enforce access (foqs access init --enforce), or set allow_open = true where everybody "
            "in the network is trusted"
        )
    _log.warning("open_to_the_network", listen_address=settings.listen_address, mode=mode.name.lower())


def _check_metrics(settings: Openness) -> None:
    if not settings.metrics_port or settings.metrics_token_file or is_loopback(settings.metrics_address):
        return
    if not settings.metrics_open:
        raise InvalidArgumentError(
            f"metrics_address = {settings.metrics_address} can be reached from other machines, and access is enforced: "
            "everybody who reaches metrics_port could read names of namespaces and words of MySQL. Set "
            "metrics_token_file to a file with a token that readers show, or metrics_open = true where everybody in "
            "the network is trusted"
        )
    _log.warning("metrics_open_to_the_network", metrics_address=settings.metrics_address)
