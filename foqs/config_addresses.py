"""The addresses of a configuration: those to listen on, and those by which others reach a host or an ensemble."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

from pydantic import AfterValidator, Field

from foqs.cluster.members.backends import zookeeper_url
from foqs.model.host_addresses import host_problem, parse_address

ANY_PORT = 1
"""Stands for the port of an address that has none."""
_ADDRESS_PATTERN = r"^[A-Za-z0-9._:%-]{1,255}$"


def is_every_address(address: str) -> bool:
    """True if the address stands for all addresses of the machine, so that others cannot connect to it."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_unspecified
    except ValueError:
        return re.fullmatch(r"0+(\.0+)*", address) is not None  # The system accepts this form as well.


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
