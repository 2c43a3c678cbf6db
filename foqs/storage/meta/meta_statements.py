"""The statements on the meta database that hosts send in scripts of one round trip (foqs.storage.meta.meta_scripts).

WRITE_SLOTS stands here too, because SQLAlchemy takes some 60 ms to compile a statement of so many rows.
"""

from __future__ import annotations

from foqs.model.cluster import ShardUse

NOW_MS = "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)"
"""Correct only in a session in UTC: any other zone can repeat an hour each year."""

# --- sessions ---

LOCK_HOLDER = "SELECT IS_USED_LOCK(%s)"
KILL_SESSION = "KILL {:d}"

# --- hosts ---

BEAT = (
    "INSERT INTO host (name, address, started_at, heartbeat_at, beat_number, state, tier, proof, is_starting, "
    f"secret_ids, peer_address) VALUES (%s, %s, %s, {NOW_MS}, %s, %s, %s, %s, %s, %s, %s) "
    "ON DUPLICATE KEY UPDATE address = VALUES(address), started_at = VALUES(started_at), "
    "heartbeat_at = VALUES(heartbeat_at), beat_number = VALUES(beat_number), "
    "state = VALUES(state), tier = VALUES(tier), proof = VALUES(proof), "
    "is_starting = VALUES(is_starting), secret_ids = VALUES(secret_ids), peer_address = VALUES(peer_address)"
)
READ_HOSTS = (
    "SELECT name, address, started_at, heartbeat_at, beat_number, state, tier, proof, is_starting, secret_ids, "
    "peer_address "
    f"FROM host WHERE heartbeat_at > {NOW_MS} - %s AND heartbeat_at < {NOW_MS} + %s ORDER BY heartbeat_at DESC LIMIT %s"
)
FIND_OLD_HOSTS = (
    f"SELECT name FROM host WHERE heartbeat_at < {NOW_MS} - %s OR heartbeat_at > {NOW_MS} + %s "
    "ORDER BY heartbeat_at LIMIT %s"
)
FIND_NAMESAKES = f"SELECT name FROM host WHERE name >= %s AND name < %s AND heartbeat_at < {NOW_MS} - %s LIMIT %s"
DELETE_OLD_HOST = f"DELETE FROM host WHERE name = %s AND (heartbeat_at < {NOW_MS} - %s OR heartbeat_at > {NOW_MS} + %s)"
"""It finds its row by name alone, because a search by time would wait for locks on other rows."""
READ_SECRETS_OF_HOSTS = (
    f"SELECT name, {NOW_MS} - heartbeat_at, secret_ids FROM host "
    f"WHERE heartbeat_at > {NOW_MS} - %s AND heartbeat_at < {NOW_MS} + %s ORDER BY name LIMIT %s"
)
READ_SECRETS = "SELECT secret, next, began_at FROM cluster_secret WHERE one = 1"

# --- shards ---

READ_SHARD = (
    "SELECT shard_id, epoch, owner, owned_since, place, state, tier, pinned_to, moving_to, changed_at, server, "
    "first_number, last_number, is_relocated FROM shard WHERE shard_id = %s"
)
TAKE_NEW_SHARD = (
    "INSERT IGNORE INTO shard (shard_id, epoch, owner, owned_since, moving_to, server, first_number, last_number) "
    "VALUES (%s, %s, %s, %s, '', %s, %s, %s)"
)
TAKE_SHARD = (
    "UPDATE shard SET epoch = %s, owner = %s, owned_since = %s, moving_to = '', server = %s, first_number = %s, "
    "last_number = %s WHERE shard_id = %s AND epoch = %s AND owner = %s AND server = %s AND state = %s AND place = %s"
)
"""It checks the values that the decision is based on, so that no lock is held between two statements."""
LEAVE_SERVER = (
    "UPDATE shard SET last_number = GREATEST(last_number, %s), server = '' "
    "WHERE shard_id = %s AND owner = %s AND epoch = %s"
)
NOTE_NUMBER = (
    "UPDATE shard SET last_number = GREATEST(last_number, %s) WHERE shard_id = %s AND owner = %s AND epoch = %s"
)
WRITTEN_COUNT = "SELECT ROW_COUNT()"
"""The rows that the last statement found, changed or not, because sessions use FOUND_ROWS."""

# --- slots ---

WRITE_SLOTS = (
    "INSERT INTO slot (slot, shard, version) VALUES {} ON DUPLICATE KEY UPDATE "
    "shard = IF(VALUES(version) > version, VALUES(shard), shard), version = GREATEST(VALUES(version), version)"
)
"""The order of its changes matters, because the comparison needs the old version."""

# --- quotas ---

BEGIN = "START TRANSACTION"
COMMIT = "COMMIT"
FIND_BOOKS = "SELECT namespace FROM quota WHERE namespace IN ({})"
WAIT_FOR_BOOKS = "SELECT namespace, book FROM quota WHERE namespace IN ({}) ORDER BY namespace FOR UPDATE"
LOCK_BOOKS = f"{WAIT_FOR_BOOKS} SKIP LOCKED"
"""Books that another host has locked are left out and asked again, so that they do not delay the others."""
READ_LIMITS = "SELECT number, enqueues_per_minute_max FROM namespace WHERE number IN ({})"
READ_NOW = f"SELECT {NOW_MS}"
WRITE_BOOK = "UPDATE quota SET book = %s WHERE namespace = %s"
MAKE_BOOKS = (
    "INSERT IGNORE INTO quota (namespace, book) "
    "SELECT number, '' FROM namespace WHERE number IN ({}) FOR UPDATE SKIP LOCKED"
)
"""The lock keeps out a deletion in between, which would leave the book behind."""

# --- permits ---

LOCK_PERMITS = "SELECT topic, book FROM permit WHERE topic IN ({}) ORDER BY topic FOR UPDATE SKIP LOCKED"
FIND_PERMITS = "SELECT topic FROM permit WHERE topic IN ({})"
MAKE_PERMITS = "INSERT IGNORE INTO permit (topic, book, waited_until) VALUES {}"
READ_POLICIES_VERSIONS = "SELECT number, policies_version FROM namespace WHERE number IN ({})"
READ_REMOVED = f"SELECT shard_id, epoch FROM shard WHERE state = {int(ShardUse.REMOVED)}"
# The rows are locked, so it makes none.
WRITE_PERMITS = (
    "INSERT INTO permit (topic, book, waited_until) VALUES {} "
    "ON DUPLICATE KEY UPDATE book = VALUES(book), waited_until = VALUES(waited_until)"
)
DELETE_PERMITS = "DELETE FROM permit WHERE topic = %s"
READ_WAITED = f"SELECT topic, book FROM permit WHERE waited_until > {NOW_MS} ORDER BY waited_until LIMIT %s"
