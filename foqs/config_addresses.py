"""The addresses of a configuration: those to listen on, and those by which others reach a host or an ensemble."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from foqs.cluster.members.backends import zookeeper_url
from foqs.model.host_addresses import HostPort, host_problem, parse_address

if TYPE_CHECKING:
    from foqs.config import HostConfig

ANY_PORT = 1
"""Stands for the port of an address that has none."""
_ADDRESS_PATTERN = r"^[A-Za-z0-9._:%-]{1,255}$"


def is_every_address(address: str) -> bool:
    """True if the address stands for all addresses of the machine, so that others cannot connect to it."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_unspecified
    except ValueError:
        return re.fullmatch(r"0+(\.0+)*", address) is not None  # The system accepts this form as well.


def advertised_of(config: HostConfig, port: int) -> str:
    """Return the address and the port at which others reach a host that listens on `port`; empty if unknown."""
    if config.advertise_address:
        found = parse_address(config.advertise_address, port or ANY_PORT)
    else:
        found = HostPort(config.listen_address, port)
    return "" if is_every_address(found.host) else str(found)


def peer_advertised_of(config: HostConfig, peer_port: int) -> str:
    """Return the address at which other hosts reach a host that listens for them on `peer_port`; empty if unknown.

    A port in `advertise_address` is that for clients.
    """
    address = advertised_of(config, ANY_PORT)
    return address and str(parse_address(address)._replace(port=peer_port))


def port_problems_of(config: HostConfig) -> Iterator[str]:
    """The faults in the ports together."""
    if config.peer_port and config.peer_port == config.port:
        yield (
            f"peer_port = {config.peer_port} is port as well; allowed: another port, or 0 if hosts use the same port "
            "as clients"
        )
    is_same_place = config.metrics_address == config.listen_address
    if config.peer_port and config.peer_port == config.metrics_port and is_same_place:
        yield f"peer_port = {config.peer_port} is metrics_port as well; allowed: another port"


def _listen_address(value: str) -> str:
    if problem := host_problem(value):
        raise ValueError(f"cannot be listened on: {problem}; allowed: an IP address of this machine, or a name of one")
    return value


def _advertise_address(value: str) -> str:
    try:
        if value:
            parse_address(value, ANY_PORT)
    except ValueError as error:
        raise ValueError(
            f"leads nowhere: {error}; allowed: ADDRESS, ADDRESS:PORT or [V6 ADDRESS]:PORT by which others reach it"
        ) from None
    return value


def _membership_url(value: str) -> str:
    return str(zookeeper_url.parse(value)) if value else ""


MembershipUrl = Annotated[str, AfterValidator(_membership_url)]
ListenAddress = Annotated[str, Field(pattern=_ADDRESS_PATTERN), AfterValidator(_listen_address)]
AdvertiseAddress = Annotated[str, AfterValidator(_advertise_address)]
