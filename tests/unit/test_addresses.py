"""Which addresses can be dialled: what is let through makes no resolver fail with anything but OSError."""

from __future__ import annotations

import os
import socket
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.client.addresses import parse_addresses
from foqs.config import ConfigError, HostConfig, load_config
from foqs.contract.requests import ReportRequest
from foqs.model.calls import CallContext
from foqs.model.errors import HostUnreachableError, InvalidArgumentError
from foqs.model.host_addresses import HostPort, parse_address
from foqs.model.peer_proof import PROOF
from foqs.model.principal import EVERYBODY
from foqs.transport.peers import Peers

CONFIG = {"meta_url": "mysql://root@db/meta", "shards": {"0": "mysql://root@db/s0"}}
UNDIALABLE = [
    "queue-a:99999", "queue-a:0", "queue-a:123456", "a..b", ".a", "a..", "x" * 64, ".".join(["x" * 60] * 5),
    "q\u00fc:99999", "[::1", "::1]", "[::1]x", "1.2.3.4.5", "256.1.1.1", "1.2.3.04x9:0", "fe80::1%", "::12345", "%",
]  # fmt: skip
SOME_TEXT = st.text(st.sampled_from("ab1290.:-_[]%x\u00fc\u3002 \0")) | st.text()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("queue-a", HostPort("queue-a", 7600)),
        ("queue_a.example.:1", HostPort("queue_a.example.", 1)),
        ("[fd00::1]:17600", HostPort("fd00::1", 17600)),
        ("[fd00::1]", HostPort("fd00::1", 7600)),
        ("fe80::1%eth0.5", HostPort("fe80::1%eth0.5", 7600)),
        ("127.1:65535", HostPort("127.1", 65_535)),
        ("0x7f.1", HostPort("0x7f.1", 7600)),
        ("m\u00fcller.example", HostPort("m\u00fcller.example", 7600)),
    ],
)
def test_an_address_is_read_in_its_usual_forms(text: str, address: HostPort) -> None:
    assert parse_address(text, 7600) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("text", UNDIALABLE)
def test_what_nobody_can_dial_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_address(text, 7600)


@given(SOME_TEXT)
def test_what_is_let_through_fails_with_nothing_but_oserror(text: str) -> None:
    for read in (lambda: [parse_address(text, 7600)], lambda: parse_addresses(text)):
        try:
            addresses = read()
        except ValueError:
            continue
        except InvalidArgumentError:
            continue
        for host, port in addresses:
            try:
                socket.getaddrinfo(host, port, flags=socket.AI_NUMERICHOST)
            except OSError:
                continue


def test_a_port_of_very_many_digits_is_an_address_that_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        parse_addresses("host:" + "1" * 5_000)


@pytest.mark.parametrize("text", UNDIALABLE)
@pytest.mark.parametrize("key", ["advertise_address", "listen_address", "metrics_address"])
def test_an_address_that_cannot_be_dialled_is_an_error_of_the_configuration_that_names_it(key: str, text: str) -> None:
    with patch.dict(os.environ), pytest.raises(ConfigError) as caught:
        load_config({**CONFIG, key: text})
    (problem,) = caught.value.problems
    assert problem.startswith(key)
    assert repr(text[:40])[1:-1][:20] in problem
    assert "allowed: " in problem


def test_what_a_host_advertises_can_be_dialled() -> None:
    for text in ("queue-a", "queue-a:1", "fd00::1", "[fd00::1]:2", "10.0.0.1", "[queue-a]:3"):
        config = HostConfig(**CONFIG, advertise_address=text)  # type: ignore[arg-type]
        assert parse_address(config.advertised(7600)).host.strip("[]") in text


@pytest.mark.parametrize("text", ["", ":", "queue-a", *UNDIALABLE])
async def test_a_peer_whose_row_has_an_address_that_nobody_can_dial_is_not_reached(text: str) -> None:
    peers = Peers("me", "foqs", lambda: b"s" * 32, lambda _: PROOF, os.urandom, lambda: 0.0)
    await peers.start()
    try:
        with pytest.raises(HostUnreachableError):
            await peers.get("b", text).call(CallContext("", principal=EVERYBODY), "report", ReportRequest([]))
    finally:
        await peers.stop()


@pytest.mark.parametrize(
    "raised", [ValueError("v"), OverflowError("o"), UnicodeError("u"), KeyError("k"), MemoryError()]
)
async def test_whatever_a_connect_raises_the_host_is_not_reached(raised: Exception) -> None:
    peers = Peers("me", "foqs", lambda: b"s" * 32, lambda _: PROOF, os.urandom, lambda: 0.0)
    await peers.start()
    try:
        with patch.object(Peers, "_greeted", side_effect=raised), pytest.raises(HostUnreachableError, match="b cannot"):
            await peers.get("b", "queue-b:1").call(CallContext("", principal=EVERYBODY), "report", ReportRequest([]))
        assert peers.states()["failed"] == 1
    finally:
        await peers.stop()
