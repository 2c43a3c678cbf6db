"""Every statement on a shard, by name. Works on MariaDB >= 10.6 and MySQL >= 8.0.

`{…}` stands for SQL made by `foqs.storage.shard.script`, a guard (NONE_AHEAD, ALL_INSERTED), or integers.
"""

from __future__ import annotations

from foqs.model.serial import SERIAL_DUE_AT
from foqs.shard.port import ClaimedRow, FetchedRow
from foqs.storage.schema.item_columns import CONTENT_COLUMNS, INSERTED_COLUMNS, ITEM_COLUMNS, names
from foqs.storage.sessions.whole_reads import ended

_CONTENTS = names(CONTENT_COLUMNS)
_ITEM_ENDS = "".join(["u" if "unsigned" in column.sql_type else "s" for column in ITEM_COLUMNS])
"""The kinds of ITEM_COLUMNS, in the form that `ended` takes."""
_CONTENT_BYTES = " + ".join([f"OCTET_LENGTH({name})" for name in _CONTENTS])
_ROW_BYTES = f"{_CONTENT_BYTES} + OCTET_LENGTH(errors)"
_LEFT_OUT = dict.fromkeys([*_CONTENTS, "errors"], "x''") | {"death_reason": "IF(death_reason IS NULL, NULL, x'')"}
_LEAST_OF_ROW = ", ".join([_LEFT_OUT.get(name, name) for name in names(ITEM_COLUMNS)])
_WITH_ERROR = "errors = LEFT(CONCAT({}, errors), {})"
_COLUMN_OF = {"key": "id", "was_dead": "death_reason IS NOT NULL"}
"""The fields of rows whose columns have other names."""


def _fetched(*first: str) -> str:
    """Return the columns of a FetchedRow, as one text of integers followed by the contents.

    The last integer is the running total of content bytes; contents beyond a total of @contents_max are NULL.
    """
    integers = [*first, *[_COLUMN_OF.get(name, name) for name in FetchedRow._fields if name != "content"]]
    contents = [f"IF(@contents > @contents_max, NULL, {name})" for name in _CONTENTS]
    count = f"@contents := @contents + {_CONTENT_BYTES}"
    return f"CONCAT_WS(' ', {', '.join(integers)}, {count}), {', '.join(contents)}"


_CLAIMED = ", ".join([_COLUMN_OF.get(name, name) for name in ClaimedRow._fields])

LOCK_SHARD = "SELECT GET_LOCK(%s, %s)"
LOCK_HOLDER = "SELECT IS_USED_LOCK(%s)"
LIMIT_SILENCE = "SET SESSION wait_timeout = %s"
KILL_SESSION = "KILL {}"
READ_SESSION_USER = "SELECT USER, SUBSTRING_INDEX(USER(), '@', 1) FROM information_schema.PROCESSLIST WHERE ID = %s"
READ_GRANTS = "SHOW GRANTS"
READ_NETWORKING = "SHOW GLOBAL VARIABLES WHERE Variable_name = 'skip_networking'"
READ_SERVER = (
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_uuid', 'server_uid', 'hostname', 'port', 'datadir')"
)
ROLLBACK = "ROLLBACK"
NOW_MS = "SELECT CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)"

READ_WRITER = (
    "SELECT epoch, owner, transaction_number, delay_checkpoint, claim_checkpoint, topic_number_last, "
    "session_id, steady_ms FROM writer WHERE one = 1"
)
TAKE_WRITER = "UPDATE writer SET epoch = %s, owner = %s, session_id = CONNECTION_ID() WHERE one = 1 AND epoch <= %s"
RENEW_EPOCH = "UPDATE writer SET epoch = %s WHERE one = 1 AND epoch = %s"
NOTE_SESSION = "UPDATE writer SET session_id = CONNECTION_ID() WHERE one = 1 AND epoch = %s"
# Another owner's epoch sets the row's epoch to NULL, which the column forbids, so the statement fails. So does an
# insert that was sent ahead and failed: the script still runs, but must not reach its COMMIT.
MARK_TRANSACTION = (
    "UPDATE writer SET epoch = IF(epoch = %s AND {}, epoch, NULL), transaction_number = %s, delay_checkpoint = %s, "
    "claim_checkpoint = %s, topic_number_last = %s, steady_ms = %s WHERE one = 1"
)
NONE_AHEAD = "TRUE"
ALL_INSERTED = "@inserted = {}"
COUNT_FIRST_INSERTED = "SET @inserted = {} + ROW_COUNT()"
COUNT_INSERTED = "SET @inserted = @inserted + ROW_COUNT()"
# Count the rows that a script found to change or delete. With FOUND_ROWS a session counts found rows, not changed ones.
COUNT_NO_CHANGES = "SET @changed = 0"
COUNT_CHANGED = "SET @changed = @changed + ROW_COUNT()"
ALL_CHANGED = "@changed = {}"
# The guard itself makes the last count, and so the only one that most transactions have: a statement less each.
LAST_CHANGED = "(@changed := @changed + ROW_COUNT()) = {}"
ONLY_CHANGED = "(@changed := ROW_COUNT()) = {}"
READ_CHANGED = "SELECT epoch, @changed FROM writer WHERE one = 1"

READ_IDENTITY = ended("SELECT cluster, shard_id FROM identity WHERE one = 1", "su")
# The first writer wins.
KEEP_IDENTITY = "INSERT INTO identity (one, cluster, shard_id) VALUES (1, %s, %s) ON DUPLICATE KEY UPDATE one = one"

READ_SLOTS = ended("SELECT version, shards FROM slot_copy WHERE one = 1", "us")
KEEP_SLOTS = (
    "INSERT INTO slot_copy (one, version, shards) VALUES (1, %s, %s) ON DUPLICATE KEY UPDATE "
    "shards = IF(VALUES(version) > version, VALUES(shards), shards), version = GREATEST(version, VALUES(version))"
)

READ_ARRIVAL = ended("SELECT version, from_shard, slots FROM slot_arrival WHERE one = 1", "uus")
READ_ARRIVED = ended("SELECT namespace, version, slots, read_to, first, moved_end FROM slot_arrived", "uusuuu")
# A host that does not know the outcome of its first attempt begins again.
BEGIN_ARRIVAL = (
    "INSERT INTO slot_arrival (one, version, from_shard, slots) VALUES (1, %s, %s, %s) "
    "ON DUPLICATE KEY UPDATE one = one"
)
NOTE_ARRIVED = (
    "INSERT INTO slot_arrived (namespace, version, slots, read_to, first, moved_end) VALUES (%s, %s, %s, %s, %s, %s) "
    "ON DUPLICATE KEY UPDATE first = IF(version = VALUES(version), first, VALUES(first)), version = VALUES(version), "
    "slots = VALUES(slots), read_to = VALUES(read_to), moved_end = VALUES(moved_end)"
)
END_ARRIVAL = "DELETE FROM slot_arrival WHERE one = 1"
# A new owner begins again with each copy that is under way.
BEGIN_COPY = (
    "INSERT INTO group_copy (namespace, job, up_to, position, copied) VALUES (%s, %s, %s, 0, 0) "
    "ON DUPLICATE KEY UPDATE job = VALUES(job)"
)
MOVE_COPY = "UPDATE group_copy SET position = %s, copied = copied + %s WHERE namespace = %s AND job = %s"
END_COPY = "DELETE FROM group_copy WHERE namespace = %s AND job = %s"
READ_COPY = ended("SELECT up_to, position, copied FROM group_copy WHERE namespace = %s AND job = %s", "uuu")
FORGET_ARRIVED = "DELETE FROM slot_arrived WHERE namespace = %s"
READ_STEADY = "SELECT steady_ms FROM writer WHERE one = 1"

REPEATABLE = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"
SNAPSHOT = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
READ_TOPICS = ended("SELECT number, namespace, name FROM topic", "sus")
READ_NAMESPACES = ended("SELECT number, name FROM namespace ORDER BY number", "us")
COUNT_LANES = ended("SELECT lane, COUNT(*) FROM item FORCE INDEX (lane_order) GROUP BY lane", "ss")
COUNT_DELAYED = ended("SELECT topic, COUNT(*) FROM item FORCE INDEX (lane_order) WHERE lane = 0 GROUP BY topic", "ss")
READ_CLAIMS = ended("SELECT id, due_at, ahead, entries FROM claim WHERE id >= %s ORDER BY id", "usss")
READ_HEADS = ended(f"SELECT {_LEAST_OF_ROW} FROM item FORCE INDEX (PRIMARY) WHERE {{}} ORDER BY id", _ITEM_ENDS)
# Send all integers as one text, here and below, because the host splits it in half the time of reading single columns.
READ_CLAIMED = ended(f"SELECT CONCAT_WS(' ', {_CLAIMED}) FROM item FORCE INDEX (PRIMARY) WHERE {{}} ORDER BY id", "s")
FETCH_ITEMS = f"SELECT {_fetched()} FROM item FORCE INDEX (PRIMARY) WHERE {{}} ORDER BY id"
READ_FIRST_PACKS = ended("SELECT id, items FROM pack ORDER BY id LIMIT %s", "us")
READ_TOMBSTONES = ended("SELECT id, entries FROM tombstone ORDER BY id", "us")
_FIRST_SEEN = "(SELECT {} FROM seen WHERE seen.namespace = number ORDER BY first LIMIT 1)"
_LAST_SEEN = "(SELECT {} FROM seen WHERE seen.namespace = number ORDER BY first DESC LIMIT 1)"
# Read both ends of each log. MIN and MAX would read all of it.
READ_SEEN_EXTENTS = ended(
    f"SELECT number, {_FIRST_SEEN.format('first')}, {_LAST_SEEN.format('first')}, "
    f"{_LAST_SEEN.format('OCTET_LENGTH(entries)')}, {_LAST_SEEN.format('ASCII(entries)')}, "
    f"{_LAST_SEEN.format('at_ms')} FROM namespace",
    "uuusus",
)
READ_SEEN_LOG = ended(
    "SELECT namespace, first, at_ms, entries FROM seen WHERE namespace = %s AND first >= %s ORDER BY first LIMIT %s",
    "uuss",
)
READ_SEEN_SPAN = ended(
    "SELECT namespace, first, at_ms, entries FROM seen "
    "WHERE namespace = %s AND first >= %s AND first < %s ORDER BY first",
    "uuss",
)
# Do not read the bodies, which are stored outside the rows.
READ_SEEN_IMAGES = ended(
    "SELECT namespace, first, ids_count, MIN(part), MAX(part), COUNT(*) FROM seen_table "
    "GROUP BY namespace, first, ids_count",
    "uuuuus",
)
READ_SEEN_PARTS = ended(
    "SELECT part, body FROM seen_table WHERE namespace = %s AND first = %s AND ids_count = %s AND part >= %s "
    "ORDER BY part LIMIT %s",
    "us",
)
READ_SEEN = ended(
    "SELECT namespace, first, at_ms, entries FROM seen WHERE namespace = {} AND ({}) ORDER BY first", "uuss"
)
READ_HELD = ended(
    "SELECT namespace, digest, shard_id, first, copies FROM held_id FORCE INDEX (by_digest) "
    "WHERE namespace = {} AND digest IN ({})",
    "usuuu",
)
READ_HOLDING = ended("SELECT DISTINCT namespace FROM held_id FORCE INDEX (by_digest)", "u")
SCAN_HELD = ended(
    "SELECT id, shard_id, namespace, digest, first, copies FROM held_id FORCE INDEX (PRIMARY) "
    "WHERE id > %s OR (id = %s AND shard_id > %s) ORDER BY id, shard_id LIMIT %s",
    "uuusuu",
)
READ_ITEMS = ended(
    f"SELECT {', '.join(names(ITEM_COLUMNS))} FROM item FORCE INDEX (PRIMARY) WHERE {{}} ORDER BY id", _ITEM_ENDS
)

READS_BEGIN = "SET @reads_begin = SYSDATE(6), @contents = 0, @contents_max = {}"
FETCHES_BEGIN = "SET @contents = 0"
READS_END = "SELECT TIMESTAMPDIFF(MICROSECOND, @reads_begin, SYSDATE(6))"
REFILL = ended(
    "SELECT urgency, due_at, id, 0, 0 FROM item FORCE INDEX (lane_order) "
    "WHERE lane = %s AND (urgency > %s OR (urgency = %s AND (due_at > %s OR (due_at = %s AND id > %s)))) "
    "ORDER BY urgency, due_at, id LIMIT %s",
    "ssuss",
)
READ_SORT_KEY = ended(
    "SELECT urgency, due_at, id FROM item FORCE INDEX (lane_order) "
    "WHERE lane = %s AND (urgency > %s OR (urgency = %s AND (due_at > %s OR (due_at = %s AND id > %s)))) "
    "ORDER BY urgency, due_at, id LIMIT 1 OFFSET %s",
    "ssu",
)
REFILL_WITH_PAYLOAD = ended(
    f"SELECT {_fetched('urgency', 'due_at')} FROM item FORCE INDEX (lane_order) "
    "WHERE lane = %s AND (urgency > %s OR (urgency = %s AND (due_at > %s OR (due_at = %s AND id > %s)))) "
    "ORDER BY urgency, due_at, id LIMIT %s",
    "s" * (1 + len(_CONTENTS)),
)
REFILL_TIMERS = ended(
    "SELECT urgency, due_at, id, topic, COALESCE(place, priority) FROM item FORCE INDEX (lane_order) "
    "WHERE lane = 0 AND urgency = 0 AND (due_at > %s OR (due_at = %s AND id > %s)) "
    "ORDER BY due_at, id LIMIT %s",
    "ssuss",
)

SCAN = ended(
    f"SELECT urgency, due_at, id, {_ROW_BYTES} FROM item FORCE INDEX (lane_order) "
    "WHERE lane = %s AND (urgency > %s OR (urgency = %s AND (due_at > %s OR (due_at = %s AND id > %s)))) "
    "ORDER BY urgency, due_at, id LIMIT %s",
    "ssus",
)
SCAN_EXPIRY = (
    "SELECT MAX(id), MIN(IF(lane >= 0, expires_at, NULL)) FROM "
    "(SELECT id, lane, expires_at FROM item FORCE INDEX (PRIMARY) WHERE id > %s ORDER BY id LIMIT %s) AS page"
)
READ_EXPIRED = ended(
    "SELECT id FROM item FORCE INDEX (PRIMARY) WHERE id > %s AND id <= %s AND lane >= 0 AND expires_at <= %s", "u"
)

EXPORT_EDGE = (
    "SELECT MAX(id), COUNT(*) FROM "
    "(SELECT id FROM item FORCE INDEX (PRIMARY) WHERE id > %s AND id <= %s ORDER BY id LIMIT %s) AS page"
)
EXPORT_KEYS = ended(
    "SELECT id FROM item FORCE INDEX (PRIMARY) WHERE id > %s AND id <= %s AND {} ORDER BY id LIMIT %s", "u"
)
EXPORT_KEYS_OF_NAMESPACE = ended(
    "SELECT id FROM item FORCE INDEX (PRIMARY) STRAIGHT_JOIN topic FORCE INDEX (PRIMARY) "
    "ON topic.number = item.topic WHERE id > %s AND id <= %s AND topic.namespace = %s "
    "AND LEFT(topic.name, %s) = %s AND {} ORDER BY id LIMIT %s",
    "u",
)
EXPORT_LANES = ended(
    "SELECT id FROM item FORCE INDEX (lane_order) WHERE {} AND id > %s AND id <= %s ORDER BY id LIMIT %s", "u"
)
EXPORT_DELAYED = ended(
    "SELECT id FROM item FORCE INDEX (lane_order) WHERE lane = 0 AND {} AND id > %s AND id <= %s ORDER BY id LIMIT %s",
    "u",
)
EXPORT_SIZES = ended("SELECT id, {} FROM item FORCE INDEX (PRIMARY) WHERE {} ORDER BY id", "us")
EXPORT_ITEMS = ended("SELECT {} FROM item FORCE INDEX (PRIMARY) WHERE {} ORDER BY id", _ITEM_ENDS)
EXPORT_NEXT_KEY = ended(
    "SELECT id FROM item FORCE INDEX (PRIMARY) WHERE id > %s AND id <= %s ORDER BY id LIMIT 1 OFFSET %s", "u"
)
EXPORT_FEW_KEYS = ended(
    "SELECT id FROM item FORCE INDEX (PRIMARY) WHERE id > %s AND id <= %s ORDER BY id LIMIT %s", "u"
)
EXPORT_LAST_KEY = ended(
    "SELECT id FROM item FORCE INDEX (PRIMARY) WHERE id > %s AND id <= %s ORDER BY id DESC LIMIT 1", "u"
)

INSERT_NAMESPACE = "INSERT INTO namespace (number, name) VALUES (%s, %s)"
DELETE_NAMESPACES = "DELETE FROM namespace WHERE {} ORDER BY number LIMIT {}"
INSERT_TOPICS = "INSERT INTO topic (number, namespace, name) VALUES (%s, %s, %s)"
INSERT_ITEMS = f"INSERT INTO item ({', '.join(names(INSERTED_COLUMNS))}) VALUES {{}}"
INSERT_STORED_ITEMS = f"INSERT INTO item ({', '.join(names(ITEM_COLUMNS))}) VALUES {{}}"
INSERT_PACK = "INSERT INTO pack (id, items) VALUES ({}, {})"
INSERT_TOMBSTONE = "INSERT INTO tombstone (id, entries) VALUES (%s, %s)"
DELETE_TOMBSTONES = "DELETE FROM tombstone WHERE {} ORDER BY id LIMIT {}"
DELETE_PACKS = "DELETE FROM pack WHERE {} ORDER BY id LIMIT {}"
INSERT_SEEN = "INSERT INTO seen (namespace, first, at_ms, entries) VALUES ({}, {}, {}, {})"
DELETE_SEEN = "DELETE FROM seen WHERE namespace = %s AND first >= %s AND first < %s"
INSERT_SEEN_PART = "INSERT INTO seen_table (namespace, first, ids_count, part, body) VALUES (%s, %s, %s, %s, %s)"
DELETE_SEEN_PARTS = (
    "DELETE FROM seen_table WHERE namespace = %s AND first = %s AND ids_count = %s AND part >= %s AND part < %s"
)
# A copy of ids that came with slots can be repeated.
INSERT_HELD = (
    "INSERT INTO held_id (id, shard_id, namespace, digest, first, copies) VALUES {} "
    "ON DUPLICATE KEY UPDATE first = LEAST(first, VALUES(first))"
)
DELETE_HELD = "DELETE FROM held_id WHERE shard_id = {} AND ({}) ORDER BY id LIMIT {}"
# A deletion of one table takes no hint.
FREE_HELD = (
    "DELETE held_id FROM held_id FORCE INDEX (by_digest) WHERE namespace = {} AND digest IN ({}) AND shard_id = {}"
)
FREE_DISTANT = (
    "UPDATE held_id FORCE INDEX (by_digest) SET first = 0 WHERE namespace = {} AND digest IN ({}) AND shard_id <> {}"
)
RELEASE_HELD = (
    "DELETE held_id FROM held_id FORCE INDEX (by_digest) "
    "WHERE namespace = %s AND digest = %s AND shard_id = %s AND first = %s"
)
REWRITE_CLAIM = "UPDATE claim SET entries = %s WHERE id = %s"
INSERT_CLAIM = "INSERT INTO claim (id, due_at, ahead, entries) VALUES (%s, %s, %s, %s)"
REWRITE_ITEM = (
    # It counts itself, because a script can have thousands of these, and a count after each would double its
    # statements.
    "UPDATE item SET lane = %s, urgency = %s, due_at = %s, deliveries = IF(@changed := @changed + 1, %s, 0), "
    "failed_attempts = %s, "
    "expires_at = COALESCE(%s, expires_at), metadata = COALESCE(%s, metadata), "
    "death_reason = COALESCE(%s, death_reason) WHERE id = %s"
)
# A redrive gives an item of a topic that ages its place anew: a statement of its own, so that other rewrites do not get
# longer. It comes after the rewrite of the row, which is counted.
REPLACE_ITEM = "UPDATE item SET place = {} WHERE id = {}"
REWRITE_FAILED_ITEM = REWRITE_ITEM.replace(" WHERE ", f", {_WITH_ERROR.format('%s', '%s')} WHERE ")
RECOUNT_ITEMS = (
    "UPDATE item FORCE INDEX (PRIMARY) SET deliveries = {}, failed_attempts = {} WHERE {} ORDER BY id LIMIT {}"
)
RECOUNT_FAILED_ITEMS = RECOUNT_ITEMS.replace(" WHERE ", f", {_WITH_ERROR} WHERE ")
WAKE_ITEMS = (
    "UPDATE item FORCE INDEX (PRIMARY) SET lane = topic, urgency = COALESCE(place, priority) "
    "WHERE {} ORDER BY id LIMIT {}"
)
WAKE_IN_PLACE = (
    "UPDATE item FORCE INDEX (PRIMARY) SET lane = topic, urgency = priority, "
    f"due_at = {SERIAL_DUE_AT} WHERE {{}} ORDER BY id LIMIT {{}}"
)
DELETE_ITEMS = "DELETE FROM item WHERE {} ORDER BY id LIMIT {}"
DELETE_CLAIMS = "DELETE FROM claim WHERE {} ORDER BY id LIMIT {}"
DELETE_TOPICS = "DELETE FROM topic WHERE {} ORDER BY number LIMIT {}"
