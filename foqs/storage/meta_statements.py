"""The statements on the meta database that hosts send in scripts of one round trip (foqs.storage.meta_scripts)."""

from __future__ import annotations

NOW_MS = "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)"
"""Right only in a session in UTC: elsewhere an hour comes twice a year."""

# --- sessions ---

SET_UP = (
    "SET SESSION time_zone = '+00:00', innodb_lock_wait_timeout = {lock_wait_s}, lock_wait_timeout = {lock_wait_s}, "
    "wait_timeout = {silent_s}"
)
READ_COMMITTED = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
LOCK_HOLDER = "SELECT IS_USED_LOCK(%s)"
KILL_SESSION = "KILL {:d}"

# --- hosts ---

BEAT = (
    "INSERT INTO host (name, address, started_at, heartbeat_at, beat_number, state, tier) "
    f"VALUES (%s, %s, %s, {NOW_MS}, %s, %s, %s) ON DUPLICATE KEY UPDATE address = VALUES(address), "
    "started_at = VALUES(started_at), heartbeat_at = VALUES(heartbeat_at), beat_number = VALUES(beat_number), "
    "state = VALUES(state), tier = VALUES(tier)"
)
READ_HOSTS = (
    "SELECT name, address, started_at, heartbeat_at, beat_number, state, tier FROM host "
    f"WHERE heartbeat_at > {NOW_MS} - %s AND heartbeat_at < {NOW_MS} + %s ORDER BY heartbeat_at DESC LIMIT %s"
)
FIND_OLD_HOSTS = (
    f"SELECT name FROM host WHERE heartbeat_at < {NOW_MS} - %s OR heartbeat_at > {NOW_MS} + %s "
    "ORDER BY heartbeat_at LIMIT %s"
)
FIND_NAMESAKES = f"SELECT name FROM host WHERE name >= %s AND name < %s AND heartbeat_at < {NOW_MS} - %s LIMIT %s"
DELETE_OLD_HOST = f"DELETE FROM host WHERE name = %s AND (heartbeat_at < {NOW_MS} - %s OR heartbeat_at > {NOW_MS} + %s)"
"""It finds the row by its name alone: to look at the rows of others it would wait for their locks."""

# --- shards ---

TAKE_EPOCH = (
    "INSERT INTO shard (shard_id, epoch, owner, owned_since, moving_to) VALUES (%s, LAST_INSERT_ID(%s), %s, %s, '') "
    "ON DUPLICATE KEY UPDATE epoch = LAST_INSERT_ID(GREATEST(epoch, %s) + 1), owner = VALUES(owner), "
    "owned_since = VALUES(owned_since), moving_to = ''"
)
TAKEN_EPOCH = "SELECT LAST_INSERT_ID()"

# --- quotas ---

BEGIN = "START TRANSACTION"
COMMIT = "COMMIT"
FIND_BOOKS = "SELECT namespace FROM quota WHERE namespace IN ({})"
WAIT_FOR_BOOKS = "SELECT namespace, book FROM quota WHERE namespace IN ({}) ORDER BY namespace FOR UPDATE"
LOCK_BOOKS = f"{WAIT_FOR_BOOKS} SKIP LOCKED"
"""Books that another host is at are left out, and asked again: none holds up the others."""
READ_LIMITS = "SELECT number, enqueues_per_minute_max FROM namespace WHERE number IN ({})"
READ_NOW = f"SELECT {NOW_MS}"
WRITE_BOOK = "UPDATE quota SET book = %s WHERE namespace = %s"
MAKE_BOOKS = (
    "INSERT IGNORE INTO quota (namespace, book) "
    "SELECT number, '' FROM namespace WHERE number IN ({}) FOR UPDATE SKIP LOCKED"
)
"""The lock lets no deletion come in between, which would leave the book behind."""
