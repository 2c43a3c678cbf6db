"""Two hosts that share the shards are restarted one after the other under load: no call of a client fails."""

from __future__ import annotations

import signal

import pytest

from tests.e2e.conftest import StartHost
from tests.support.faults.programs import free_port
from tests.support.steady_traffic import PATIENCE_S, Traffic, owned_count
from tests.support.waiting import until_true

pytestmark = [pytest.mark.database, pytest.mark.slow]


def test_both_hosts_are_restarted_in_turn_and_no_call_fails(start_host: StartHost) -> None:
    ports = {"host-1": free_port(), "host-2": free_port()}
    hosts = {name: start_host(name, port) for name, port in ports.items()}
    until_true(lambda: [owned_count(host) for host in hosts.values()] == [2, 2], PATIENCE_S)
    with Traffic([host.address for host in hosts.values()]) as traffic:
        traffic.go_on(consumed=200)
        for name, other in (("host-1", "host-2"), ("host-2", "host-1")):
            hosts[name].signal(signal.SIGTERM)
            assert hosts[name].wait() == 0, hosts[name].output
            assert owned_count(hosts[other]) == 4
            traffic.go_on(consumed=200)
            hosts[name] = start_host(name, ports[name])
            until_true(lambda: [owned_count(host) for host in hosts.values()] == [2, 2], PATIENCE_S)
            traffic.go_on(consumed=200)
        traffic.end()
    output = "\n".join(host.output for host in hosts.values())
    assert traffic.failures == [], output
    assert len(traffic.consumed) == len(set(traffic.consumed)), "an item was delivered twice"
    assert set(traffic.consumed) == traffic.enqueued
