"""The commands of docs/deploy-vm.md and docs/restore.md run as they stand there, on a private server."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from foqs import AdminClient, Client, NewItem
from foqs.dev.local_server import LocalServer
from foqs.model.ids import parse
from tests.support.databases import prepared_server, server_binary
from tests.support.doc_machine import Block, Machine, blocks
from tests.support.outside_tools import outside_tool

_DOCS = Path(__file__).parents[2] / "docs"
_VM = [block for block in blocks(_DOCS / "deploy-vm.md") if not block.reason]
_RESTORE = [block for block in blocks(_DOCS / "restore.md") if not block.reason]
_ITEMS_COUNT = 9_000
"""Items that are enough to reach several shards."""
_SHARD = 1

pytestmark = [
    pytest.mark.database,
    pytest.mark.deep,
    pytest.mark.skipif(shutil.which("mariadb") is None, reason="the pages use the program mariadb"),
    pytest.mark.skipif(not server_binary().is_mariadb, reason="the pages are for MariaDB"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    with prepared_server(tmp_path / "mysql") as made:
        yield made


@pytest.fixture
def machine(tmp_path: Path, server: LocalServer) -> Iterator[Machine]:
    with closing(Machine(tmp_path / "root", server)) as made:
        yield made


def _of(page: list[Block], heading: str) -> list[Block]:
    found = [block for block in page if block.heading == heading]
    assert found, f"no block below {heading!r}"
    return found


def _set_up(machine: Machine) -> dict[str, str]:
    """Run the page up to the service; what the blocks print, by their heading."""
    printed: dict[str, str] = {}
    for heading in ("The database", "The program and its settings", "The users and the tables", "The service"):
        printed[heading] = "".join([machine.run(block) for block in _of(_VM, heading)])
    return printed


def test_a_machine_is_set_up_and_its_password_changed(machine: Machine) -> None:
    outside_tool("promtool", "prometheus")
    printed = _set_up(machine)
    assert "the configuration is valid: host queue-1, 4 shards" in printed["The service"]
    assert 'Status: "serves 4 shards on port' in printed["The service"]
    for heading in ("The first item", "The first alert", "Change the password of the database"):
        printed[heading] = "".join([machine.run(block) for block in _of(_VM, heading)])
    assert "to: ann@example.org" in printed["The first item"]
    assert "SUCCESS" in printed["The first alert"]
    assert list(printed) == list(dict.fromkeys(block.heading for block in _VM)), "each block that can run was run"
    secrets = {(machine.root / "etc/foqs" / name).read_text().strip() for name in ("meta_password", "schema_password")}
    assert len(secrets) == 2
    assert [secret for secret in secrets for text in printed.values() if secret in text] == []


def test_a_shard_and_the_meta_database_are_restored(machine: Machine) -> None:
    _set_up(machine)
    for block in _of(_VM, "The first item"):
        machine.run(block)
    with Client(machine.address) as client:
        client.enqueue_many("jobs", [NewItem("kept", b"%d" % number) for number in range(_ITEMS_COUNT)])
    before = _stored(machine)
    assert len(before) > 1
    assert before[_SHARD] > 0
    for block in _of(_RESTORE, "Back up"):
        machine.run(block)
    _ack_all(machine)
    for heading in ("Restore one shard", "Restore a shard at another place"):
        for block in _of(_RESTORE, heading):
            machine.run(block)
        assert _stored(machine) == {_SHARD: before[_SHARD]}, heading
        _ack_all(machine)
    for block in _of(_RESTORE, "Restore the meta database"):
        machine.run(block)
    with Client(machine.address) as client:
        item_id = client.enqueue("jobs", "after", b"x")
        (item,) = client.dequeue("jobs", "after", wait_ms=20_000)
        assert item.id == item_id
    assert {block.heading for block in _RESTORE} == {
        "Back up",
        "Restore one shard",
        "Restore a shard at another place",
        "Restore the meta database",
    }


def _stored(machine: Machine) -> dict[int, int]:
    """The number of stored items, by shard."""
    with AdminClient(machine.address) as admin:
        return dict(Counter(parse(item.id)[0] for item in admin.iterate_items("jobs")))


def _ack_all(machine: Machine) -> None:
    with Client(machine.address) as client:
        while items := client.dequeue("jobs", "kept", 1_000, wait_ms=500):
            client.ack("jobs", items)
    assert _stored(machine) == {}
