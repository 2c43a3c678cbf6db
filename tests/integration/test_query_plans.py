"""Every statement on a shard takes the index it should, and reads no more than it must.

EXPLAIN tells the index; the session's handler counters tell what was really read, which no optimizer's estimate
can gloss over. Both are asked twice: with the statistics of an empty table, as production has them (the tables
never recalculate), and after ANALYZE TABLE.
"""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any

import pymysql
import pytest

from foqs.model import order
from foqs.model.calls import ItemContent
from foqs.model.item import ShardItem
from foqs.storage.schema import statements
from foqs.storage.schema.migrations import SchemaKind, apply
from foqs.storage.sessions.session import connect
from foqs.storage.shard import script
from foqs.storage.shard.export_pages import columns_of, content_bytes_of
from foqs.storage.shard.formats import pack_items, pack_keys
from foqs.storage.shard.script import chunks_by_bytes, edge_arguments, item_row, key_conditions, stored_row_literal
from foqs.testing.fake_rows import new_row
from tests.contract.owner import new_topic
from tests.support.held_plans import HELD_CASES, INSERT_HELD, fill_held
from tests.support.plan_case import PAGE, SLACK, Case

LANES = {1: 24_000, 2: 12_000, 3: 6_000, -1: 5_000, 0: 6_000}
"""Rows by lane: three topics, the dead letters of the first, and the timers."""
ITEM_COUNT = sum(LANES.values())
TOPIC_COUNT = 2_000
CLAIM_COUNT = 2_000
PACK_COUNT = 400
SEEN_COUNT = 4_000
ARRIVED_COUNT = 300
"""Rows of the logs of dedup ids, which are full: four namespaces have 1,000 each."""
IMAGE_PARTS = 40
"""Parts of each image of a table of dedup ids; there are two of each of those namespaces."""

TABLES = (
    "item", "pack", "tombstone", "claim", "topic", "namespace", "seen", "seen_table", "writer", "slot_copy",
    "slot_arrival", "slot_arrived", "identity", "held_id",
)  # fmt: skip
ALL_INSERTED = statements.ALL_INSERTED.format(5)
SEEN_FIRSTS = list(range(0, 1280 * script.STATEMENT_RANGES_MAX, 1280))
ITEM_IDS = list(range(5, 5 + 20 * script.STATEMENT_IDS_MAX, 20))
RANGE_IDS = list(range(5, 5 + script.STATEMENT_IDS_MAX))
MIXED_IDS = [*range(5, 405), 407, 409, *range(420, 700)]


def spread(text: str, ids: list[int], column: str = "id") -> str:
    """The statement with its condition filled in, as the store does it."""
    ((condition, count),) = key_conditions(column, ids)
    return text.format(condition, count)


def after(lane: int, urgency: int, due_at: int) -> tuple[int, ...]:
    return (lane, *edge_arguments(order.sort_key(urgency, due_at, 7, 0)), PAGE)


NEW_ITEM = ShardItem(10**9, new_topic(1), 0, 5, 0, content=ItemContent(b"x", b""))


CASES: dict[str, list[Case]] = {
    "READ_WRITER": [Case("PRIMARY", 2)],
    "READ_IDENTITY": [Case("PRIMARY", 2)],
    "READ_SLOTS": [Case("PRIMARY", 2)],
    "READ_ARRIVAL": [Case("PRIMARY", 2)],
    "READ_ARRIVED": [Case("", ARRIVED_COUNT + SLACK, with_payload=True)],
    "END_ARRIVAL": [Case("PRIMARY", 3)],
    "FORGET_ARRIVED": [Case("PRIMARY", 3, (5,))],
    "READ_COPY": [Case("PRIMARY", 2, (1, b"job-7"))],
    "MOVE_COPY": [Case("PRIMARY", 3, (9, 1, 1, b"job-7"))],
    "END_COPY": [Case("PRIMARY", 3, (1, b"job-7"))],
    "READ_CHANGED": [Case("PRIMARY", 2)],
    "READ_STEADY": [Case("PRIMARY", 2)],
    "TAKE_WRITER": [Case("PRIMARY", 3, (9, b"me", 9))],
    "RENEW_EPOCH": [Case("PRIMARY", 3, (9, 8))],
    "NOTE_SESSION": [Case("PRIMARY", 3, (9,))],
    "MARK_TRANSACTION": [
        Case("PRIMARY", 3, (1, 2, 3, 4, 5, 6), fill=lambda text: text.format(statements.NONE_AHEAD)),
        Case(
            "PRIMARY",
            3,
            (1, 2, 3, 4, 5, 6),
            fill=lambda text: text.format(f"COALESCE({ALL_INSERTED}, TRUE)"),
        ),
    ],
    "READ_TOPICS": [Case("", TOPIC_COUNT + SLACK, with_payload=True)],
    "READ_NAMESPACES": [Case("PRIMARY", TOPIC_COUNT + SLACK, with_payload=True)],
    "COUNT_LANES": [Case("lane_order", ITEM_COUNT + SLACK, with_payload=True)],
    # One entry of the index and one row each, and the table of the groups.
    "COUNT_DELAYED": [Case("lane_order", 4 * LANES[0], sorts=True)],
    "READ_CLAIMS": [
        Case("PRIMARY", 100 + SLACK, (CLAIM_COUNT - 99,)),
        Case("PRIMARY", CLAIM_COUNT + SLACK, (0,), with_payload=True),
    ],
    **{
        name: [
            Case("PRIMARY", 2 * len(ITEM_IDS) + SLACK, fill=lambda text: spread(text, ITEM_IDS)),
            Case("PRIMARY", 2 * len(RANGE_IDS) + SLACK, fill=lambda text: spread(text, RANGE_IDS)),
            Case("PRIMARY", 2 * len(MIXED_IDS) + SLACK, fill=lambda text: spread(text, MIXED_IDS)),
            Case("PRIMARY", SLACK, fill=lambda text: spread(text, ITEM_IDS[:1])),
            Case("PRIMARY", SLACK, fill=lambda text: spread(text, [10**12, 10**12 + 1])),
        ]
        for name in ("READ_HEADS", "READ_CLAIMED", "READ_ITEMS", "FETCH_ITEMS", "DELETE_ITEMS")
    },
    # MySQL notes the ids aside first, because the statement has an order.
    **{
        name: [
            Case("PRIMARY", 3 * len(ITEM_IDS) + SLACK, fill=lambda text: spread(text, ITEM_IDS), notes=True),
            Case("PRIMARY", 3 * len(RANGE_IDS) + SLACK, fill=lambda text: spread(text, RANGE_IDS), notes=True),
            Case("PRIMARY", SLACK, fill=lambda text: spread(text, ITEM_IDS[:1]), notes=True),
            Case("PRIMARY", SLACK, fill=lambda text: spread(text, [10**12, 10**12 + 1]), notes=True),
        ]
        for name in ("WAKE_ITEMS", "WAKE_IN_PLACE")
    },
    **{
        name: [
            Case("lane_order", PAGE + SLACK, (1, *edge_arguments(order.FIRST), PAGE)),
            Case("lane_order", PAGE + SLACK, after(1, 0, 5_000)),
            Case("lane_order", PAGE + SLACK, after(1, 4, 10_000)),
            Case("lane_order", SLACK, after(1, 10**6, 0)),
            Case("lane_order", PAGE + SLACK, after(-1, 0, 1_000)),
            Case("lane_order", SLACK, after(99, 0, 0)),
        ]
        for name in ("REFILL", "REFILL_WITH_PAYLOAD", "SCAN")
    },
    "READ_SORT_KEY": [
        Case("lane_order", PAGE + SLACK, (1, *edge_arguments(order.FIRST), PAGE - 1)),
        Case("lane_order", PAGE + SLACK, after(1, 4, 10_000)),
        Case("lane_order", SLACK, after(99, 0, 0)),
    ],
    "REFILL_TIMERS": [Case("lane_order", 2 * PAGE + SLACK, (due, due, 7, PAGE)) for due in (-1, 3_000)]
    + [Case("lane_order", SLACK, (10**12, 10**12, 0, PAGE))],
    "SCAN_EXPIRY": [Case("PRIMARY", 2 * PAGE + SLACK, (after_key, PAGE)) for after_key in (0, ITEM_COUNT // 2)],
    "READ_EXPIRED": [
        Case("PRIMARY", PAGE + SLACK, (key, key + PAGE, now)) for key in (0, 1_000) for now in (0, 10**15)
    ],
    **{
        name: [Case("PRIMARY", 2 * PAGE + SLACK, (key, ITEM_COUNT, PAGE)) for key in (0, 1_000)]
        for name in ("EXPORT_EDGE", "EXPORT_FEW_KEYS")
    },
    "EXPORT_KEYS": [
        Case("PRIMARY", PAGE + SLACK, (key, key + PAGE, PAGE), fill=lambda text, wanted=wanted: text.format(wanted))
        for key in (0, 1_000)
        for wanted in ("TRUE", "(lane < 0 OR lane = 0) AND (topic IN (1, 2))", "(topic IN (9))")
    ],
    # A row of the topic for each one of an item.
    "EXPORT_KEYS_OF_NAMESPACE": [
        Case(
            "PRIMARY",
            2 * PAGE + SLACK,
            (1_000, 1_000 + PAGE, 1, 3, b"top", PAGE),
            fill=lambda text, wanted=wanted: text.format(wanted),
        )
        for wanted in ("TRUE", "(lane > 0)")
    ],
    # The index does not give the order of the keys.
    "EXPORT_LANES": [
        Case(
            "lane_order",
            2 * (LANES[3] + LANES[-1]) + SLACK,
            (key, ITEM_COUNT, PAGE),
            fill=lambda text: text.format("lane IN (-1, 3)"),
            sorts=True,
        )
        for key in (0, ITEM_COUNT // 2)
    ],
    "EXPORT_DELAYED": [
        Case(
            "lane_order",
            2 * LANES[0] + SLACK,
            (key, ITEM_COUNT, PAGE),
            fill=lambda text: text.format("topic IN (1, 2)"),
            sorts=True,
        )
        for key in (0, ITEM_COUNT // 2)
    ],
    "EXPORT_ITEMS": [
        Case(
            "PRIMARY",
            2 * len(ids) + SLACK,
            fill=lambda text, ids=ids, contents=contents: text.format(
                columns_of(with_payload=contents, with_metadata=contents), *next(key_conditions("id", ids))
            ),
        )
        for ids in (ITEM_IDS, RANGE_IDS, MIXED_IDS, ITEM_IDS[:1])
        for contents in (False, True)
    ],
    "EXPORT_SIZES": [
        Case(
            "PRIMARY",
            2 * len(ids) + SLACK,
            fill=lambda text, ids=ids, contents=contents: text.format(
                content_bytes_of(with_payload=contents, with_metadata=contents), *next(key_conditions("id", ids))
            ),
        )
        for ids in (ITEM_IDS, RANGE_IDS, MIXED_IDS, ITEM_IDS[:1])
        for contents in (False, True)
    ],
    "EXPORT_NEXT_KEY": [Case("PRIMARY", PAGE + SLACK, (key, ITEM_COUNT, PAGE - 1)) for key in (0, 1_000)],
    "EXPORT_LAST_KEY": [Case("PRIMARY", SLACK, (key, ITEM_COUNT)) for key in (0, 1_000)],
    "READ_FIRST_PACKS": [Case("PRIMARY", 16 + SLACK, (16,), with_payload=True)],
    "READ_TOMBSTONES": [Case("PRIMARY", CLAIM_COUNT + SLACK, with_payload=True)],
    "REWRITE_CLAIM": [Case("PRIMARY", 3, (b"", 5))],
    "REWRITE_ITEM": [Case("PRIMARY", 3, (0, 0, 9, 1, 1, None, b"m", None, 5))],
    "REPLACE_ITEM": [Case("PRIMARY", 3, fill=lambda text: text.format(7, 5))],
    "REWRITE_FAILED_ITEM": [Case("PRIMARY", 3, (0, 0, 9, 1, 1, None, b"m", b"died", b"entry", 1_024, 5))],
    "RECOUNT_FAILED_ITEMS": [
        Case(
            "PRIMARY",
            3 * len(ids) + SLACK,
            fill=lambda text, ids=ids: spread(
                text.replace("{}", "1", 2).replace("{}", "x'65'", 1).replace("{}", "9", 1), ids
            ),
            notes=True,
        )
        for ids in (ITEM_IDS, RANGE_IDS, ITEM_IDS[:1], [10**12, 10**12 + 1])
    ],
    "RECOUNT_ITEMS": [
        Case(
            "PRIMARY",
            3 * len(ids) + SLACK,
            fill=lambda text, ids=ids: spread(text.replace("{}", "1", 2), ids),
            notes=True,
        )
        for ids in (ITEM_IDS, RANGE_IDS, ITEM_IDS[:1], [10**12, 10**12 + 1])
    ],
    **{
        name: [
            Case("PRIMARY", 2 * 200 + SLACK, fill=lambda text: spread(text, list(range(1, CLAIM_COUNT, 10)))),
            Case("PRIMARY", SLACK, fill=lambda text: spread(text, [5])),
        ]
        for name in ("DELETE_CLAIMS", "DELETE_TOMBSTONES")
    },
    "READ_SEEN_SPAN": [Case("PRIMARY", 16 + SLACK, (2, 128 * 300, 128 * 316))],
    "READ_SEEN_LOG": [Case("PRIMARY", 256 + SLACK, (2, 128 * 300, 256))],
    "READ_SEEN": [
        Case("PRIMARY", SLACK, fill=lambda text: text.format(2, "first BETWEEN 1280 AND 1407")),
        Case(
            "PRIMARY",
            2 * script.STATEMENT_RANGES_MAX + SLACK,
            fill=lambda text: text.format(2, " OR ".join([f"first BETWEEN {at} AND {at + 127}" for at in SEEN_FIRSTS])),
        ),
    ],
    **HELD_CASES,
    "READ_SEEN_IMAGES": [Case("PRIMARY", 8 * IMAGE_PARTS + SLACK, with_payload=True)],
    "READ_SEEN_PARTS": [Case("PRIMARY", 8 + SLACK, (2, 0, 128, 7, 8)), Case("PRIMARY", SLACK, (2, 0, 129, 0, 8))],
    "DELETE_SEEN_PARTS": [Case("PRIMARY", 2 * 16 + SLACK, (2, 0, 128, 7, 23))],
    "DELETE_SEEN": [Case("PRIMARY", 2 * 8 + SLACK, (2, 0, 8 * 128))],
    "DELETE_PACKS": [
        Case("PRIMARY", 2 * 40 + SLACK, fill=lambda text: spread(text, list(range(1, PACK_COUNT, 10)))),
        Case("PRIMARY", SLACK, fill=lambda text: spread(text, [1])),
    ],
    "DELETE_TOPICS": [
        Case("PRIMARY", 2 * 200 + SLACK, fill=lambda text: spread(text, list(range(1, TOPIC_COUNT, 10)), "number")),
        Case("PRIMARY", SLACK, fill=lambda text: spread(text, [5], "number")),
    ],
    "DELETE_NAMESPACES": [
        Case("PRIMARY", 2 * 200 + SLACK, fill=lambda text: spread(text, list(range(1, TOPIC_COUNT, 10)), "number")),
        Case("PRIMARY", SLACK, fill=lambda text: spread(text, [5], "number")),
    ],
}
INSERTS: dict[str, Case] = {
    "INSERT_NAMESPACE": Case("", 0, (TOPIC_COUNT + 1, b"new")),
    "INSERT_TOPICS": Case("", 0, (TOPIC_COUNT + 1, 1, b"new")),
    "INSERT_STORED_ITEMS": Case("", 0, fill=lambda text: text.format(stored_row_literal(new_row(NEW_ITEM)))),
    "INSERT_ITEMS": Case("", 0, fill=lambda text: text.format(item_row(NEW_ITEM))),
    "INSERT_PACK": Case("", 0, (10**9, b"x"), fill=lambda text: text.format("%s", "%s")),
    "INSERT_TOMBSTONE": Case("", 0, (10**9, b"x")),
    "INSERT_SEEN": Case("", 0, (9, 0, 5, b"x"), fill=lambda text: text.format("%s", "%s", "%s", "%s")),
    "INSERT_SEEN_PART": Case("", 0, (9, 0, 5, 0, b"x")),
    "INSERT_HELD": INSERT_HELD,
    "INSERT_CLAIM": Case("", 0, (10**9, 5, 1, b"")),
    "KEEP_IDENTITY": Case("", 2, (b"cluster", 3)),
    "KEEP_SLOTS": Case("", 2, (2, b"slots")),
    "BEGIN_ARRIVAL": Case("", 2, (2, 3, b"slots")),
    "NOTE_ARRIVED": Case("", 2, (5, 2, b"slots", 1, 2, 3)),
    "BEGIN_COPY": Case("", 2, (1, b"job", 7)),
}
"""They read nothing."""
WITHOUT_TABLE = {
    "READS_BEGIN",
    "FETCHES_BEGIN",
    "READS_END",
    "LOCK_SHARD",
    "LOCK_HOLDER",
    "LIMIT_SILENCE",
    "KILL_SESSION",
    "READ_SESSION_USER",
    "READ_GRANTS",
    "READ_NETWORKING",
    "READ_SERVER",
    "NOW_MS",
    "REPEATABLE",
    "SNAPSHOT",
    "ROLLBACK",
    "NONE_AHEAD",
    "ALL_INSERTED",
    "COUNT_FIRST_INSERTED",
    "COUNT_INSERTED",
    "COUNT_NO_CHANGES",
    "COUNT_CHANGED",
    "ALL_CHANGED",
    "LAST_CHANGED",
    "ONLY_CHANGED",
}
SMALL_TABLE = {
    "WAKE_ITEMS", "WAKE_IN_PLACE", "RECOUNT_ITEMS", "RECOUNT_FAILED_ITEMS", "DELETE_ITEMS", "DELETE_PACKS",
    "DELETE_TOMBSTONES",
    "DELETE_CLAIMS", "DELETE_TOPICS", "DELETE_NAMESPACES", "READ_ITEMS", "REFILL", "READ_SORT_KEY", "REFILL_TIMERS",
}  # fmt: skip
"""What runs all the time, also when the tables hold next to nothing."""


@pytest.fixture(scope="module")
def filled(mysql_server):
    """Two filled shard databases, with the statistics of empty tables and with fresh ones, and a nearly empty one."""
    urls = {name: mysql_server.url(f"plans_{name}") for name in ("unanalysed", "analysed", "small")}
    for name, url in urls.items():
        apply(url, SchemaKind.SHARD)
        _fill(url, 400 if name == "small" else 1)
    with closing(connect(urls["analysed"])) as session, session.cursor() as cursor:
        cursor.execute(f"ANALYZE TABLE {', '.join(TABLES)}")
    yield urls
    with closing(mysql_server.connect()) as session, session.cursor() as cursor:
        for name in urls:
            cursor.execute(f"DROP DATABASE plans_{name}")


@pytest.fixture
def session(filled, request):
    with closing(connect(filled[request.param])) as session:
        yield session
        session.rollback()


def _fill(url: str, share: int) -> None:
    """Every `share`-th row of the whole."""
    with closing(connect(url)) as session, session.cursor() as cursor:
        rows, key = [], 0
        for lane, count in LANES.items():
            for n in range(0, count, share):
                key += 1
                urgency = n % 8 if lane > 0 else 0
                content = ItemContent(b"p" * 100, b"")
                item = ShardItem(key, new_topic(abs(lane) or 1), n % 8, n, 0, content=content)
                # The lane is the first of the values that is not the key.
                rows.append(re.sub(r"^\((\d+),-?\d+,-?\d+", rf"(\1,{lane},{urgency}", item_row(item)))
        for values in chunks_by_bytes(rows):
            cursor.execute(statements.INSERT_ITEMS.format(values))
        topics = [(n, n % 7, b"topic-%d" % n) for n in range(1, TOPIC_COUNT // share + 1)]
        cursor.executemany(statements.INSERT_TOPICS, topics)
        cursor.executemany(statements.INSERT_NAMESPACE, [(number, name) for number, _, name in topics])
        claims = [(n, n, 1, b"\x00" * 12 * 50) for n in range(1, CLAIM_COUNT // share + 1)]
        cursor.executemany(statements.INSERT_CLAIM, claims)
        packs = [(n, pack_items([item])) for n in range(1, PACK_COUNT // share + 1)]
        cursor.executemany(statements.INSERT_PACK.format("%s", "%s"), packs)
        tombstones = [(n, pack_keys([n] * 50)) for n in range(1, CLAIM_COUNT // share + 1)]
        cursor.executemany(statements.INSERT_TOMBSTONE, tombstones)
        seen = [(n % 4, n // 4 * 128, n, b"\x03" + b"\x00" * 26 * 128) for n in range(SEEN_COUNT // share)]
        cursor.executemany(statements.INSERT_SEEN.format("%s", "%s", "%s", "%s"), seen)
        parts = [
            (n, 0, count, part, b"x" * 20_000) for n in range(4) for count in (128, 256) for part in range(IMAGE_PARTS)
        ]
        cursor.executemany(statements.INSERT_SEEN_PART, parts)
        fill_held(cursor, share)
        cursor.execute("UPDATE writer SET epoch = 1")
        cursor.execute(statements.KEEP_SLOTS, (1, b"slots"))
        cursor.execute(statements.KEEP_IDENTITY, (b"cluster", 3))
        cursor.execute(statements.BEGIN_ARRIVAL, (1, 2, b"slots"))
        arrived = [(n, 1, b"slots", 0, 0, 128) for n in range(ARRIVED_COUNT)]
        cursor.executemany(statements.NOTE_ARRIVED, arrived)
        cursor.executemany(statements.BEGIN_COPY, [(n % 3, b"job-%d" % n, 9) for n in range(100)])
        session.commit()


def explain(session: Any, text: str, arguments: tuple[object, ...]) -> list[dict[str, Any]]:
    with session.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(f"EXPLAIN FORMAT=TRADITIONAL {text}", arguments)
        # The row that is the end of a read comes from no table.
        return [plan for plan in cursor.fetchall() if plan["Extra"] != "No tables used"]


def reads_of(session: Any, text: str, arguments: tuple[object, ...]) -> int:
    """Index entries and rows that the statement touches."""
    with session.cursor() as cursor:
        before = _handler_reads(cursor)
        cursor.execute(text, arguments)
        cursor.fetchall()
        return _handler_reads(cursor) - before - _own_reads(cursor)


def _handler_reads(cursor: Any) -> int:
    cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read_%'")
    return sum(int(value) for _, value in cursor.fetchall())


def _own_reads(cursor: Any) -> int:
    """What asking for the counters itself adds to them."""
    before = _handler_reads(cursor)
    return _handler_reads(cursor) - before


def statement_names() -> set[str]:
    return {
        name for name, value in vars(statements).items() if name.isupper() and name[0] != "_" and isinstance(value, str)
    }


def test_every_statement_has_a_case():
    assert statement_names() == WITHOUT_TABLE | CASES.keys() | INSERTS.keys() | {"READ_SEEN_EXTENTS"}


def test_what_is_said_to_name_no_table_names_none():
    words = {name: set(re.findall(r"\w+", getattr(statements, name))) for name in WITHOUT_TABLE}
    assert [name for name, found in words.items() if found.intersection(TABLES)] == []


@pytest.mark.parametrize("session", ["unanalysed", "analysed"], indirect=True)
@pytest.mark.parametrize("name", sorted(CASES))
def test_a_statement_takes_its_index_and_reads_no_more_than_it_must(session, name):
    text = getattr(statements, name)
    for number, case in enumerate(CASES[name]):
        filled_in = case.fill(text)
        plans = explain(session, filled_in, case.arguments)
        assert not _faults(plans, case, text), f"case {number}: {plans}"
        assert reads_of(session, filled_in, case.arguments) <= case.reads_max, f"case {number}"
        session.rollback()


def _faults(plans: list[dict[str, Any]], case: Case, text: str) -> list[str]:
    """What is wrong with the plans of a statement."""
    *others, plan = plans
    is_join = "JOIN" in text
    extra = plan["Extra"] or ""
    sound = {"count of plans": len(others) == ("FROM (" in text) + is_join}
    if is_join:
        sound["join"] = (plan["type"], plan["key"]) == ("eq_ref", "PRIMARY")
        plan = others[0] if others else plan
        extra = plan["Extra"] or ""
    if case.with_payload:
        sound["type"] = plan["type"] in ("index", "range", "ALL")
        sound["key"] = case.key in ("", plan["key"])
    else:
        # A plan without a table has found that no row qualifies, or a single one, by the index itself.
        sound["type"] = plan["type"] in ("const", "ref", "range") or (plan["table"] is None and "const" in extra)
        sound["key"] = plan["key"] in (case.key, None if plan["table"] is None else case.key)
    sound["order"] = "filesort" not in extra or case.sorts
    sound["temporary table"] = "temporary" not in extra or case.sorts or case.notes
    return [what for what, is_sound in sound.items() if not is_sound]


@pytest.mark.parametrize("session", ["small"], indirect=True)
@pytest.mark.parametrize("name", sorted(SMALL_TABLE))
def test_a_nearly_empty_table_is_not_scanned_either(session, name):
    case = CASES[name][1 if "{" in getattr(statements, name) else 0]
    *derived, plan = explain(session, case.fill(getattr(statements, name)), case.arguments)
    assert len(derived) == ("FROM (" in getattr(statements, name))
    assert (plan["type"], plan["key"]) in (("range", case.key), ("const", case.key), ("ref", case.key))


@pytest.mark.parametrize("session", ["unanalysed", "analysed"], indirect=True)
def test_an_insert_reads_nothing(session):
    for name, case in INSERTS.items():
        text = case.fill(getattr(statements, name))
        assert explain(session, text, case.arguments), name
        assert reads_of(session, text, case.arguments) <= case.reads_max, name
        session.rollback()


@pytest.mark.parametrize("session", ["unanalysed", "analysed"], indirect=True)
def test_the_ends_of_the_logs_are_found_without_what_is_between(session):
    _, *ends = explain(session, statements.READ_SEEN_EXTENTS, ())
    assert [(end["type"], end["key"]) for end in ends] == 5 * [("ref", "PRIMARY")]
    # MariaDB counts 6 for the ends of a log, MySQL 11; a log has 1,000 rows.
    assert reads_of(session, statements.READ_SEEN_EXTENTS, ()) <= 11 * TOPIC_COUNT + SLACK


@pytest.mark.parametrize("session", ["unanalysed", "analysed"], indirect=True)
def test_a_refill_reads_the_index_alone(session):
    for case in CASES["REFILL"]:
        (plan,) = explain(session, statements.REFILL, case.arguments)
        assert "Using index" in (plan["Extra"] or ""), case.arguments


@pytest.mark.parametrize("session", ["analysed"], indirect=True)
def test_the_reads_of_a_scan_are_seen(session):
    """The measure of this file: a statement that scans the table must stand out."""
    scan = "SELECT id FROM item IGNORE INDEX (PRIMARY, lane_order) WHERE expires_at = 12345"
    assert reads_of(session, scan, ()) >= ITEM_COUNT
