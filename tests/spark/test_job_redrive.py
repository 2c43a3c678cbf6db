"""`foqs spark export` and `foqs spark redrive`."""

from __future__ import annotations

import base64
import csv
import json
from pathlib import Path

import pytest

from foqs import Client, Nack, NewItem
from tests.support.names import ODD_NAMES
from tests.support.spark_jobs import command
from tests.support.taking import deliveries

pytestmark = [pytest.mark.database, pytest.mark.slow]


def dead_letters(client: Client, namespace: str, count: int) -> None:
    """As many in the topics `mail` and `news`."""
    client.enqueue_many(namespace, [NewItem(("mail", "news")[n % 2], b"%d" % n) for n in range(count)])
    for items in deliveries(client, namespace, ["mail", "news"], count):
        client.nack(namespace, items, dead_letter=True)


def test_dead_letters_that_meet_a_condition_are_redriven_and_a_repeat_finds_none(
    quick_jvm: None, address: str, namespace: str, client: Client
) -> None:
    dead_letters(client, namespace, 200)
    options = ("--addresses", address, "--namespace", namespace, "--master", "local[2]", "--splits-per-shard", "2")
    where = ("--where", "death_reason IS NOT NULL AND topic = 'mail' AND CAST(string(payload) AS INT) < 100")
    dry = command("redrive", *options, *where, "--dry-run")
    assert dry.exit_code == 0, dry.stderr
    assert dry.stdout == "0 redriven of 50\n"
    assert "50 of topic mail" in dry.stderr
    assert [stats.ready for stats in client.topics(namespace)] == [0, 0]
    done = command("redrive", *options, *where)
    assert done.stdout == "50 redriven, 0 were no dead letters any more, 0 refused\n", done.stderr
    mail, news = client.topics(namespace)
    assert (mail.ready, mail.dead, news.ready, news.dead) == (50, 50, 0, 100)
    again = command("redrive", *options, *where)
    assert again.stdout == "0 redriven of 0\n", again.stderr


def test_reasons_that_differ_in_numbers_alone_are_counted_together_and_shown_harmless(
    quick_jvm: None, address: str, namespace: str, client: Client
) -> None:
    client.enqueue_many(namespace, [NewItem("mail", b"%d" % n) for n in range(60)])
    (items,) = deliveries(client, namespace, ["mail"], 60)
    reasons = [f"timeout of order {n} after 30{n} ms" if n < 50 else f"bad\u202ecard {n:08x}" for n in range(60)]
    client.nack(namespace, [Nack(i.receipt, dead_letter=True, reason=r) for i, r in zip(items, reasons, strict=True)])
    options = ("--addresses", address, "--namespace", namespace, "--master", "local[2]")
    dry = command("redrive", *options, "--where", "last_error LIKE '%order%' OR last_error LIKE 'bad%'", "--dry-run")
    assert dry.stdout == "0 redriven of 60\n", dry.stderr
    shown = [line for line in dry.stderr.splitlines() if "of topic mail" in line]
    assert shown == [
        "50 of topic mail: dead-lettered by its consumer: timeout of order # after # ms",
        "10 of topic mail: dead-lettered by its consumer: bad\N{REPLACEMENT CHARACTER}card #",
    ]


def test_an_export_writes_a_row_for_each_item(
    quick_jvm: None, tmp_path: Path, address: str, namespace: str, client: Client
) -> None:
    client.enqueue_many(namespace, [NewItem("mail", b"\xff%d" % n) for n in range(300)])
    client.enqueue_many(namespace, [NewItem("news", b"x")] * 5)
    options = ("--addresses", address, "--namespace", namespace, "--master", "local[2]")
    out = tmp_path / "out"
    done = command("export", *options, "--topic", "mail", "--output", str(out), "--format", "json")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("300 items in ")
    rows = [json.loads(line) for part in out.glob("part-*.json") for line in part.read_text().splitlines()]
    assert {base64.b64decode(row["payload"]) for row in rows} == {b"\xff%d" % n for n in range(300)}
    assert {row["state"] for row in rows} == {"ready"}
    csv_out = tmp_path / "csv"
    client.enqueue_many(namespace, [NewItem(name, b"n") for name in ODD_NAMES])
    wanted = [part for name in ODD_NAMES for part in ("--topic", name)]
    done = command("export", *options, *wanted, "--output", str(csv_out), "--format", "csv")
    assert done.exit_code == 0, done.stderr
    topics = {
        row["topic"]
        for part in csv_out.glob("part-*.csv")
        for row in csv.DictReader(part.read_bytes().decode().split("\n"))
    }
    assert topics == set(ODD_NAMES)
    wrong = command("export", *options, "--namespace", "nobody", "--output", str(tmp_path / "no"), "--format", "csv")
    assert wrong.exit_code == 1
    assert "nobody" in wrong.stderr.splitlines()[-1], wrong.stderr
