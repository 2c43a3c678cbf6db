"""The tables of the meta database (schema/meta/)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import BigInteger, Column, Integer, MetaData, SmallInteger, Table, literal_column
from sqlalchemy.dialects.mysql import BIGINT, DOUBLE, MEDIUMBLOB, VARBINARY

from foqs.model.namespace import SETTING_RATES, SETTING_TEXTS, NamespaceSettings

METADATA = MetaData()


def _type_of(setting: str) -> Any:
    if setting in SETTING_TEXTS:
        return VARBINARY(512)
    return DOUBLE(asdecimal=False) if setting in SETTING_RATES else BigInteger()


NAMESPACE = Table(
    "namespace",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("name", VARBINARY(64), nullable=False),
    Column("former_name", VARBINARY(64), nullable=False),
    *(Column(field.name, _type_of(field.name), nullable=False) for field in fields(NamespaceSettings)),
    Column("policies_version", BIGINT(unsigned=True), nullable=False),
    Column("created_at", BigInteger, nullable=False),
)
NAMESPACE_NUMBER = Table(
    "namespace_number",
    METADATA,
    Column("one", SmallInteger, primary_key=True, autoincrement=False),
    Column("last", Integer, nullable=False),
)
CENSUS = Table(
    "census",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("namespace", Integer, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("topic_namespace", Integer, nullable=False),
    Column("topic", VARBINARY(255), nullable=False),
    Column("closes", MEDIUMBLOB, nullable=True),
)
CENSUS_ANSWER = Table(
    "census_answer",
    METADATA,
    Column("census", BigInteger, primary_key=True, autoincrement=False),
    Column("shard_id", SmallInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("items_count", BigInteger, nullable=False),
    Column("number_max", Integer, nullable=False),
    Column("slots_version", BigInteger, nullable=False),
    Column("held", VARBINARY(160), nullable=False),
)
SHARD = Table(
    "shard",
    METADATA,
    Column("shard_id", SmallInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("owner", VARBINARY(128), nullable=False),
    Column("owned_since", BigInteger, nullable=False),
    Column("place", VARBINARY(255), nullable=False),
    Column("state", SmallInteger, nullable=False),
    Column("tier", VARBINARY(64), nullable=False),
    Column("pinned_to", VARBINARY(128), nullable=False),
    Column("moving_to", VARBINARY(128), nullable=False),
    Column("changed_at", BigInteger, nullable=False),
    Column("server", VARBINARY(255), nullable=False),
    Column("first_number", BIGINT(unsigned=True), nullable=False),
    Column("last_number", BIGINT(unsigned=True), nullable=False),
    Column("is_relocated", SmallInteger, nullable=False),
)
JOB = Table(
    "job",
    METADATA,
    Column("namespace", Integer, primary_key=True, autoincrement=False),
    Column("id", VARBINARY(128), primary_key=True),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("state", SmallInteger, nullable=False),
    Column("items_per_second_max", BigInteger, nullable=False),
    Column("items_count", BigInteger, nullable=False),
    Column("duplicates_count", BigInteger, nullable=False),
    Column("rejected_count", BigInteger, nullable=False),
    Column("rows_count", BigInteger, nullable=False),
    Column("detail", VARBINARY(4096), nullable=False),
)
JOB_HOST = Table(
    "job_host",
    METADATA,
    Column("namespace", Integer, primary_key=True, autoincrement=False),
    Column("job", VARBINARY(128), primary_key=True),
    Column("host", VARBINARY(128), primary_key=True),
    Column("started_at", BigInteger, primary_key=True, autoincrement=False),
    Column("active_at", BigInteger, nullable=False),
    Column("items_count", BigInteger, nullable=False),
    Column("duplicates_count", BigInteger, nullable=False),
    Column("rejected_count", BigInteger, nullable=False),
)
SLOT = Table(
    "slot",
    METADATA,
    Column("slot", SmallInteger, primary_key=True, autoincrement=False),
    Column("shard", SmallInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
)
SLOT_MOVE = Table(
    "slot_move",
    METADATA,
    Column("one", SmallInteger, primary_key=True, autoincrement=False),
    Column("version", BigInteger, nullable=False),
    Column("from_shard", SmallInteger, nullable=False),
    Column("to_shard", SmallInteger, nullable=False),
    Column("slots", VARBINARY(2048), nullable=False),
    Column("phase", SmallInteger, nullable=False),
)
SLOT_GATE = Table(
    "slot_gate",
    METADATA,
    Column("slot", SmallInteger, primary_key=True, autoincrement=False),
    Column("from_shard", SmallInteger, primary_key=True, autoincrement=False),
    Column("to_shard", SmallInteger, nullable=False),
    Column("id", BIGINT(unsigned=True), nullable=False),
    Column("state", SmallInteger, nullable=False),
    Column("since_ms", BigInteger, nullable=False),
)
QUOTA = Table(
    "quota",
    METADATA,
    Column("namespace", Integer, primary_key=True, autoincrement=False),
    Column("book", VARBINARY(8192), nullable=False),
)
TOPIC_POLICY, TOPIC_PREFIX_POLICY = [
    Table(
        name,
        METADATA,
        Column("namespace", Integer, primary_key=True, autoincrement=False),
        Column(key, VARBINARY(255), primary_key=True),
        Column("enqueue_paused", SmallInteger, nullable=False),
        Column("dequeue_paused", SmallInteger, nullable=False),
        Column("reason", VARBINARY(512), nullable=False),
        Column("deliveries_per_second_max", DOUBLE(asdecimal=False), nullable=False),
        Column("weight", Integer, nullable=False),
        Column("attempts_max", Integer, nullable=False),
        Column("depth_max", BigInteger, nullable=False),
        Column("dead_letter_on_expiry", SmallInteger, nullable=False),
        Column("backoff_ms", BigInteger, nullable=False),
        Column("backoff_ms_max", BigInteger, nullable=False),
        Column("serial", SmallInteger, nullable=False),
        Column("on_dead", SmallInteger, nullable=False),
        Column("in_flight_max", Integer, nullable=False),
        Column("key_buckets", Integer, nullable=False),
        Column("key_batch", Integer, nullable=False),
        Column("aging_ms_per_priority", Integer, nullable=False),
        Column("explicit", Integer, nullable=False),
    )
    for name, key in (("topic_policy", "topic"), ("topic_prefix_policy", "prefix"))
]
HOST = Table(
    "host",
    METADATA,
    Column("name", VARBINARY(128), primary_key=True),
    Column("address", VARBINARY(255), nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("heartbeat_at", BigInteger, nullable=False),
    Column("beat_number", BigInteger, nullable=False),
    Column("state", SmallInteger, nullable=False),
    Column("tier", VARBINARY(64), nullable=False),
    Column("proof", SmallInteger, nullable=False),
    Column("is_starting", SmallInteger, nullable=False),
    Column("secret_ids", VARBINARY(64), nullable=False),
    Column("peer_address", VARBINARY(255), nullable=True),
)
CLUSTER_NAME = Table(
    "cluster_name",
    METADATA,
    Column("one", SmallInteger, primary_key=True, autoincrement=False),
    Column("name", VARBINARY(64), nullable=False),
    Column("taken_at", BigInteger, nullable=False),
)
CLUSTER_SECRET = Table(
    "cluster_secret",
    METADATA,
    Column("one", SmallInteger, primary_key=True, autoincrement=False),
    Column("secret", VARBINARY(64), nullable=False),
    Column("next", VARBINARY(64), nullable=False),
    Column("began_at", BigInteger, nullable=False),
)
CLUSTER_ID = Table(
    "cluster_id",
    METADATA,
    Column("one", SmallInteger, primary_key=True, autoincrement=False),
    Column("id", VARBINARY(16), nullable=False),
)
ACCESS = Table(
    "access",
    METADATA,
    Column("one", SmallInteger, primary_key=True, autoincrement=False),
    Column("version", BigInteger, nullable=False),
    Column("mode", SmallInteger, nullable=False),
    Column("changed_at", BigInteger, nullable=False),
)
ACCESS_PRINCIPAL = Table(
    "access_principal",
    METADATA,
    Column("name", VARBINARY(64), primary_key=True),
    Column("enabled", SmallInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)
ACCESS_GRANT = Table(
    "access_grant",
    METADATA,
    Column("principal", VARBINARY(64), primary_key=True),
    Column("namespaces", VARBINARY(65), primary_key=True),
    Column("roles", VARBINARY(255), nullable=False),
)
ACCESS_TOKEN = Table(
    "access_token",
    METADATA,
    Column("id", VARBINARY(12), primary_key=True),
    Column("principal", VARBINARY(64), nullable=False),
    Column("hash", VARBINARY(32), nullable=False),
    Column("label", VARBINARY(128), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", VARBINARY(64), nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("used_at", BigInteger, nullable=False),
)
ACCESS_CERTIFICATE = Table(
    "access_certificate",
    METADATA,
    Column("name", VARBINARY(255), primary_key=True),
    Column("principal", VARBINARY(64), nullable=False),
    Column("label", VARBINARY(128), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", VARBINARY(64), nullable=False),
)

SERVER_NOW_MS = literal_column("CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)", BigInteger)
"""Correct only in a session in UTC: any other zone can repeat an hour each year."""
AUDIT = Table(
    "audit",
    METADATA,
    Column("at", BigInteger, primary_key=True, autoincrement=False),
    Column("host", VARBINARY(128), primary_key=True),
    Column("number", BIGINT(unsigned=True), primary_key=True, autoincrement=False),
    Column("request_id", VARBINARY(64), nullable=False),
    Column("principal", VARBINARY(64), nullable=False),
    Column("credential", VARBINARY(255), nullable=False),
    Column("address", VARBINARY(64), nullable=False),
    Column("verb", VARBINARY(64), nullable=False),
    Column("namespace", VARBINARY(64), nullable=False),
    Column("subject", VARBINARY(512), nullable=False),
    Column("changes", VARBINARY(2048), nullable=False),
    Column("outcome", VARBINARY(64), nullable=False),
    Column("took_ms", BigInteger, nullable=False),
    Column("count", BigInteger, nullable=False),
)
TOPIC_GROUP = Table(
    "topic_group",
    METADATA,
    Column("namespace", Integer, primary_key=True, autoincrement=False),
    Column("topic", VARBINARY(255), primary_key=True),
    Column("is_deleted", SmallInteger, nullable=False),
    Column("ttl_ms", BigInteger, nullable=False),
    Column("delay_ms", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("copy_job", VARBINARY(64), nullable=False),
    Column("is_copying", SmallInteger, nullable=False),
)
GROUP_COPY = Table(
    "group_copy",
    METADATA,
    Column("namespace", Integer, primary_key=True, autoincrement=False),
    Column("topic", VARBINARY(255), primary_key=True),
    Column("shard_id", Integer, primary_key=True, autoincrement=False),
    Column("copied", BigInteger, nullable=False),
    Column("is_done", SmallInteger, nullable=False),
)
BULK_JOB = Table(
    "bulk_job",
    METADATA,
    Column("namespace", Integer, primary_key=True, autoincrement=False),
    Column("job", VARBINARY(128), primary_key=True),
    Column("work", MEDIUMBLOB, nullable=False),
    Column("deliver_after", BigInteger, nullable=False),
    Column("error", VARBINARY(512), nullable=False),
)
BULK_RUNNING = Table(
    "bulk_running",
    METADATA,
    Column("namespace", Integer, primary_key=True, autoincrement=False),
    Column("job", VARBINARY(128), primary_key=True),
)
BULK_PART = Table(
    "bulk_part",
    METADATA,
    Column("namespace", Integer, primary_key=True, autoincrement=False),
    Column("job", VARBINARY(128), primary_key=True),
    Column("shard_id", SmallInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("active_at", BigInteger, nullable=False),
    Column("as_of", BigInteger, nullable=False),
    Column("to_key", BIGINT(unsigned=True), nullable=False),
    Column("after_key", BIGINT(unsigned=True), nullable=False),
    Column("page_to", BIGINT(unsigned=True), nullable=False),
    Column("page_keys", MEDIUMBLOB, nullable=False),
    Column("later_keys", MEDIUMBLOB, nullable=True),
    Column("of_items", BigInteger, nullable=False),
    Column("examined", BigInteger, nullable=False),
    Column("matched", BigInteger, nullable=False),
    Column("done", BigInteger, nullable=False),
    Column("skipped", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("is_done", SmallInteger, nullable=False),
    Column("is_recounted", SmallInteger, nullable=False),
    Column("error", VARBINARY(512), nullable=False),
)
