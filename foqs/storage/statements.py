"""Every statement on a shard, by name. Works on MariaDB >= 10.6 and MySQL >= 8.0.

`{…}` takes what `foqs.storage.literals` makes, a guard (NONE_AHEAD, ALL_INSERTED), and integers.
"""

from __future__ import annotations

COLUMNS = (
    "id, lane, urgency, due_at, topic, priority, enqueued_at, expires_at, lease_ms, at_most_once, "
    "deliveries, failed_attempts, death_reason, metadata, payload"
)

LOCK_SHARD = "SELECT GET_LOCK(%s, %s)"
LOCK_HOLDER = "SELECT IS_USED_LOCK(%s)"
LIMIT_SILENCE = "SET SESSION wait_timeout = %s"
KILL_SESSION = "KILL {}"
ROLLBACK = "ROLLBACK"
NOW_MS = "SELECT CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)"

READ_WRITER = (
    "SELECT epoch, owner, transaction_number, delay_checkpoint, claim_checkpoint, topic_number_last, "
    "session_id, steady_ms FROM writer WHERE one = 1"
)
TAKE_WRITER = "UPDATE writer SET epoch = %s, owner = %s, session_id = CONNECTION_ID() WHERE one = 1 AND epoch <= %s"
RENEW_EPOCH = "UPDATE writer SET epoch = %s WHERE one = 1 AND epoch = %s"
NOTE_SESSION = "UPDATE writer SET session_id = CONNECTION_ID() WHERE one = 1 AND epoch = %s"
# The epoch of another owner makes the row's epoch NULL, which it cannot be: the statement fails. So does an insert
# sent ahead of the script that failed: the script runs all the same, but must not come to its COMMIT.
MARK_TRANSACTION = (
    "UPDATE writer SET epoch = IF(epoch = %s AND {}, epoch, NULL), transaction_number = %s, delay_checkpoint = %s, "
    "claim_checkpoint = %s, topic_number_last = %s, steady_ms = %s WHERE one = 1"
)
NONE_AHEAD = "TRUE"
ALL_INSERTED = "@inserted = {}"
COUNT_FIRST_INSERTED = "SET @inserted = {} + ROW_COUNT()"
COUNT_INSERTED = "SET @inserted = @inserted + ROW_COUNT()"

REPEATABLE = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"
SNAPSHOT = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
READ_TOPICS = "SELECT number, namespace, name FROM topic"
READ_NAMESPACES = "SELECT number, name FROM namespace ORDER BY number"
COUNT_LANES = "SELECT lane, COUNT(*) FROM item FORCE INDEX (lane_order) GROUP BY lane"
COUNT_DELAYED = "SELECT topic, COUNT(*) FROM item FORCE INDEX (lane_order) WHERE lane = 0 GROUP BY topic"
READ_CLAIMS = "SELECT id, due_at, ahead, entries FROM claim WHERE id >= %s ORDER BY id"
READ_HEADS = (
    "SELECT id, lane, urgency, due_at, topic, priority, enqueued_at, expires_at, lease_ms, at_most_once, "
    "deliveries, failed_attempts, NULL, x'', x'' FROM item FORCE INDEX (PRIMARY) WHERE {} ORDER BY id"
)
# One text of all integers, here and below: the host splits it in half the time that it takes to read a column each.
READ_CLAIMED = (
    "SELECT CONCAT_WS(' ', id, lane, urgency, due_at, topic, priority, enqueued_at, expires_at, lease_ms, "
    "at_most_once, deliveries, failed_attempts) FROM item FORCE INDEX (PRIMARY) WHERE {} ORDER BY id"
)
# The last one is how many bytes of contents the rows up to this one have; past @contents_max the contents are NULL.
FETCH_ITEMS = (
    "SELECT CONCAT_WS(' ', id, enqueued_at, expires_at, lease_ms, at_most_once, deliveries, failed_attempts, "
    "@contents := @contents + OCTET_LENGTH(metadata) + OCTET_LENGTH(payload)), "
    "IF(@contents > @contents_max, NULL, metadata), IF(@contents > @contents_max, NULL, payload) "
    "FROM item FORCE INDEX (PRIMARY) WHERE {} ORDER BY id"
)
READ_PACKS = "SELECT id, items FROM pack WHERE {} ORDER BY id"
READ_FIRST_PACK = "SELECT id, items FROM pack ORDER BY id LIMIT 1"
READ_TOMBSTONES = "SELECT id, entries FROM tombstone ORDER BY id"
READ_ITEMS = f"SELECT {COLUMNS} FROM item FORCE INDEX (PRIMARY) WHERE {{}} ORDER BY id"

READS_BEGIN = "SET @reads_begin = SYSDATE(6), @contents = 0, @contents_max = {}"
FETCHES_BEGIN = "SET @contents = 0"
READS_END = "SELECT TIMESTAMPDIFF(MICROSECOND, @reads_begin, SYSDATE(6))"
REFILL = (
    "SELECT urgency, due_at, id, 0, 0 FROM item FORCE INDEX (lane_order) "
    "WHERE lane = %s AND (urgency > %s OR (urgency = %s AND (due_at > %s OR (due_at = %s AND id > %s)))) "
    "ORDER BY urgency, due_at, id LIMIT %s"
)
READ_SORT_KEY = (
    "SELECT urgency, due_at, id FROM item FORCE INDEX (lane_order) "
    "WHERE lane = %s AND (urgency > %s OR (urgency = %s AND (due_at > %s OR (due_at = %s AND id > %s)))) "
    "ORDER BY urgency, due_at, id LIMIT 1 OFFSET %s"
)
REFILL_WITH_PAYLOAD = (
    "SELECT CONCAT_WS(' ', urgency, due_at, id, enqueued_at, expires_at, lease_ms, at_most_once, deliveries, "
    "failed_attempts, @contents := @contents + OCTET_LENGTH(metadata) + OCTET_LENGTH(payload)), "
    "IF(@contents > @contents_max, NULL, metadata), IF(@contents > @contents_max, NULL, payload) "
    "FROM item FORCE INDEX (lane_order) "
    "WHERE lane = %s AND (urgency > %s OR (urgency = %s AND (due_at > %s OR (due_at = %s AND id > %s)))) "
    "ORDER BY urgency, due_at, id LIMIT %s"
)
REFILL_TIMERS = (
    "SELECT urgency, due_at, id, topic, priority FROM item FORCE INDEX (lane_order) "
    "WHERE lane = 0 AND urgency = 0 AND (due_at > %s OR (due_at = %s AND id > %s)) "
    "ORDER BY due_at, id LIMIT %s"
)

SCAN = (
    "SELECT urgency, due_at, id, OCTET_LENGTH(payload) + OCTET_LENGTH(metadata) FROM item FORCE INDEX (lane_order) "
    "WHERE lane = %s AND (urgency > %s OR (urgency = %s AND (due_at > %s OR (due_at = %s AND id > %s)))) "
    "ORDER BY urgency, due_at, id LIMIT %s"
)
SCAN_EXPIRY = (
    "SELECT MAX(id), MIN(IF(lane >= 0, expires_at, NULL)) FROM "
    "(SELECT id, lane, expires_at FROM item FORCE INDEX (PRIMARY) WHERE id > %s ORDER BY id LIMIT %s) AS page"
)
READ_EXPIRED = "SELECT id FROM item FORCE INDEX (PRIMARY) WHERE id > %s AND id <= %s AND lane >= 0 AND expires_at <= %s"

INSERT_NAMESPACE = "INSERT INTO namespace (number, name) VALUES (%s, %s)"
DELETE_NAMESPACES = "DELETE FROM namespace WHERE {} ORDER BY number LIMIT {}"
INSERT_TOPICS = "INSERT INTO topic (number, namespace, name) VALUES (%s, %s, %s)"
INSERT_ITEMS = (
    "INSERT INTO item (id, lane, urgency, due_at, topic, priority, enqueued_at, expires_at, lease_ms, "
    "at_most_once, metadata, payload) VALUES {}"
)
INSERT_PACK = "INSERT INTO pack (id, items) VALUES ({}, {})"
INSERT_TOMBSTONE = "INSERT INTO tombstone (id, entries) VALUES (%s, %s)"
DELETE_TOMBSTONES = "DELETE FROM tombstone WHERE {} ORDER BY id LIMIT {}"
DELETE_PACKS = "DELETE FROM pack WHERE {} ORDER BY id LIMIT {}"
REWRITE_CLAIM = "UPDATE claim SET entries = %s WHERE id = %s"
INSERT_CLAIM = "INSERT INTO claim (id, due_at, ahead, entries) VALUES (%s, %s, %s, %s)"
REWRITE_ITEM = (
    "UPDATE item SET lane = %s, urgency = %s, due_at = %s, deliveries = %s, failed_attempts = %s, "
    "expires_at = COALESCE(%s, expires_at), metadata = COALESCE(%s, metadata), "
    "death_reason = COALESCE(%s, death_reason) WHERE id = %s"
)
RECOUNT_ITEMS = (
    "UPDATE item FORCE INDEX (PRIMARY) SET deliveries = {}, failed_attempts = {} WHERE {} ORDER BY id LIMIT {}"
)
WAKE_ITEMS = "UPDATE item FORCE INDEX (PRIMARY) SET lane = topic, urgency = priority WHERE {} ORDER BY id LIMIT {}"
DELETE_ITEMS = "DELETE FROM item WHERE {} ORDER BY id LIMIT {}"
DELETE_CLAIMS = "DELETE FROM claim WHERE {} ORDER BY id LIMIT {}"
DELETE_TOPICS = "DELETE FROM topic WHERE {} ORDER BY number LIMIT {}"
