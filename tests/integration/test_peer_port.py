"""Real hosts with a port for hosts alone, and others without, that share the shards of one cluster."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from foqs.client.queue_items import NewItem
from foqs.cluster.members.membership import Membership
from foqs.cluster.peers.guarded_peers import GuardedPeers
from foqs.config import HostConfig
from foqs.dev.free_port import free_port
from foqs.reload import Reload
from foqs.wire.codec import UNKNOWN_METHOD, ApplicationError, structs
from tests.support.cluster import cluster
from tests.support.raw_client import RawClient
from tests.support.running_host import RunningHost
from tests.support.waiting import until

pytestmark = pytest.mark.database

GREET = structs.GreetRequest(2, "a#1", "b#1", b"0" * 32)


async def an_item_goes_through_all(hosts: list[RunningHost]) -> None:
    """Each host gives away, takes and acks items, whichever of them has their shards."""
    made = [await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 4) for host in hosts]
    wanted = {item_id for result in made for item_id in result.ids}
    taken: set[str] = set()
    while taken != wanted:
        for host, other in zip(hosts, [*hosts[1:], hosts[0]], strict=True):
            items = await host.client.dequeue("jobs", "t", 3, lease_ms=600_000, wait_ms=50)
            await other.client.ack("jobs", items)
            taken |= {item.id for item in items}


async def test_hosts_call_each_other_at_their_ports_and_clients_know_the_others(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    ports = [free_port(), free_port()]
    settings = [{"peer_port": port} for port in ports]
    with capture_logs() as logs:
        async with cluster(meta_url, shard_urls, 3, settings) as hosts:
            for host in hosts:
                for shard_id in range(len(shard_urls)):
                    owner = host.host.owners.get(shard_id)
                    assert owner is not None
                    assert owner.address in {one.address for one in hosts}, "clients are told the port for clients"
            await an_item_goes_through_all(hosts)
            for host in hosts:
                assert (await host.admin.plan_export("jobs")).missing == []
            told = {one.name: (one.address, one.peer_address) for one in await hosts[2].admin.list_hosts()}
            assert told == {
                "host-0": (hosts[0].address, f"127.0.0.1:{ports[0]}"),
                "host-1": (hosts[1].address, f"127.0.0.1:{ports[1]}"),
                "host-2": (hosts[2].address, ""),
            }
            assert (await hosts[0].admin.host_status()).peer_address == f"127.0.0.1:{ports[0]}"
            for host, has_own in zip(hosts, (True, True, False), strict=True):
                error = (await host.raw.call("greet", GREET)).error
                assert (isinstance(error, ApplicationError) and error.kind == UNKNOWN_METHOD) is has_own
            async with RawClient.connect("127.0.0.1", ports[0]) as client:
                error = (await client.call("listHosts", structs.ListHostsRequest())).error
                assert "only hosts of this cluster may call listHosts here" in error.message
            linked = hosts[2].host._routing._peers._links  # type: ignore[attr-defined]
            assert {link.address for link in linked.values()} == {f"127.0.0.1:{port}" for port in ports}
    assert not [one for one in logs if one["event"] == "peer_not_reached"]


async def test_a_port_for_hosts_waits_for_the_next_start_of_the_host(meta_url: str) -> None:
    before = HostConfig(meta_url=meta_url, port=0)
    reload = Reload(before, lambda: before.model_copy(update={"peer_port": 7601}))
    with capture_logs() as logs:
        assert reload.run().peer_port == 0
    (told,) = [one for one in logs if one["event"] == "configuration_reloaded"]
    assert (told["changed"], told["needs_restart"]) == ([], ["peer_port"])


async def test_a_host_of_an_older_build_is_served_at_the_port_for_clients_as_long_as_it_lives(
    meta_url: str, shard_urls: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    advertise, made = Membership.advertise, GuardedPeers.__init__
    older: list[Membership] = []

    def advertise_as_older(self: Membership, address: str, peer_address: str = "") -> None:
        if not older and not peer_address:
            older.append(self)
        advertise(self, address, peer_address)
        if self in older:
            self._me = self._me._replace(peer_address=None)

    # The last host is the older one: it tells no address for hosts, and knows none.
    monkeypatch.setattr(Membership, "advertise", advertise_as_older)
    monkeypatch.setattr(
        GuardedPeers, "__init__", lambda self, me, peers, now_s, rows: made(self, me, peers, now_s, _known_to(me, rows))
    )
    async with cluster(meta_url, shard_urls, 2, [{"peer_port": free_port()}]) as (newer, old):
        assert len(older) == 1
        await until(lambda: newer.host.owners.has_older_hosts)
        for host in (newer, old):
            assert (await host.admin.plan_export("jobs")).missing == []
        assert "UNKNOWN" not in str((await newer.raw.call("greet", GREET)).error)
        await old.host.drain()
        await old.host.stop()
        await until(lambda: not newer.host.owners.has_older_hosts)
        async with RawClient.connect("127.0.0.1", newer.host.port) as client:
            assert isinstance((await client.call("greet", GREET)).error, ApplicationError)


def _known_to(me: str, rows: object) -> object:
    return dict if me.startswith("host-1") else rows
