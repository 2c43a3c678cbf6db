"""The certificates of hosts are replaced again and again under load: no call fails, on old connections or new ones."""

from __future__ import annotations

import signal
import socket
import ssl
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from foqs import Client, FoqsError
from foqs.client.retry import RetryPolicy
from loadtest.stress.hosts import cluster
from loadtest.stress.verdict import Bound, Verdict
from tests.support.certificates import Authority
from tests.support.faults import FaultError
from tests.support.faults.load import NAMESPACE
from tests.support.faults.own_thread import OwnThread
from tests.support.faults.programs import HostProgram
from tests.support.steady_traffic import Traffic

_CALM_ITEMS = 100
_POLL_S = 0.01
_PATIENCE_S = 30.0
_CERTIFICATE = "host"


@dataclass(frozen=True, slots=True)
class Course:
    hosts: int = 2
    times: int = 100
    """How often each host gets a new certificate."""


class _Newcomers(OwnThread):
    """Connects to a host for each call. `failures` are calls that failed; none is repeated."""

    def __init__(self, address: str, options: dict[str, Any]) -> None:
        super().__init__(f"newcomers-{address}")
        self.connections_count = 0
        self.failures: list[FoqsError] = []
        self._address, self._options = address, options

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with Client(self._address, **self._options) as client:
                    list(client.topics(NAMESPACE))
            except FoqsError as error:
                self.failures.append(error)
            self.connections_count += 1


def run(course: Course) -> Verdict:
    verdict = Verdict("reload")
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foqs-reload-")))
        authority = Authority(home)
        issued = authority.issue(_CERTIFICATE, hosts=["127.0.0.1"])
        # What starts the hosts makes plain calls; everything else here speaks TLS.
        variables = {
            "FOQS_TLS": "accepted",
            "FOQS_TLS_CERT_FILE": issued.cert_file,
            "FOQS_TLS_KEY_FILE": issued.key_file,
            "FOQS_TLS_CA_FILE": authority.ca_file,
            "FOQS_TLS_TO_PEERS": "true",
        }
        hosts = stack.enter_context(cluster(course.hosts, variables=variables))
        hosts.create([NAMESPACE])
        options: dict[str, Any] = {"tls": True, "ca_file": authority.ca_file, "retry": RetryPolicy(deadline_ms=0)}
        newcomers = [stack.enter_context(_Newcomers(address, options)) for address in hosts.addresses]
        traffic = stack.enter_context(Traffic(hosts.addresses, **options))
        traffic.go_on(consumed=_CALM_ITEMS)
        took_ms = []
        for _ in range(course.times):
            took_ms.append(_replace(authority, hosts.programs))
            traffic.go_on(consumed=_CALM_ITEMS)
        traffic.end()
    _judge(verdict, took_ms, newcomers, traffic)
    verdict.facts |= {"hosts": course.hosts, "certificates of each host": course.times}
    return verdict


def _replace(authority: Authority, hosts: Sequence[HostProgram]) -> float:
    """After how many ms the last host serves new connections with its new certificate."""
    began_s = time.monotonic()
    authority.issue(_CERTIFICATE, hosts=["127.0.0.1"])
    wanted = ssl.PEM_cert_to_DER_cert((Path(authority.ca_file).parent / f"{_CERTIFICATE}.cert.pem").read_text())
    for host in hosts:
        host.signal(signal.SIGHUP)
    for host in hosts:
        while _served(authority, host.port) != wanted:
            if time.monotonic() - began_s > _PATIENCE_S:
                raise FaultError(f"{host.address} has not taken its new certificate: {host.output[-2_000:]}")
            time.sleep(_POLL_S)
    return 1000 * (time.monotonic() - began_s)


def _served(authority: Authority, port: int) -> bytes | None:
    """The certificate that a host shows to a new connection."""
    with (
        socket.create_connection(("127.0.0.1", port), _PATIENCE_S) as plain,
        authority.client_context().wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
    ):
        return encrypted.getpeercert(binary_form=True)


def _judge(verdict: Verdict, took_ms: Sequence[float], newcomers: Sequence[_Newcomers], traffic: Traffic) -> None:
    consumed = set(traffic.consumed)
    failures = [*traffic.failures, *[error for one in newcomers for error in one.failures]]
    verdict.facts |= {
        "items delivered": len(consumed),
        "connections made meanwhile": sum(one.connections_count for one in newcomers),
        "until all hosts serve the new certificate, median ms": round(median(took_ms), 1),
        "the same, longest ms": round(max(took_ms), 1),
        "failures": "; ".join(map(str, failures[:3])),
    }
    verdict.bounds += [
        Bound("calls failed", len(failures), 0),
        Bound("items lost", len(traffic.enqueued - consumed), 0),
        Bound("items delivered twice", len(traffic.consumed) - len(consumed), 0),
    ]
