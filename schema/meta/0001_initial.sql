-- The meta database: what all hosts of a cluster share. Hosts keep serving what they own without it.

-- Numbers stand in the rows of the shards and are never given twice. former_name: the name that the shards know the
-- number by, where it was recovered under another one; else empty.
CREATE TABLE namespace (
  number INT UNSIGNED NOT NULL,
  name VARBINARY(64) NOT NULL,
  former_name VARBINARY(64) NOT NULL,
  enqueues_per_minute_max BIGINT NOT NULL,
  payload_bytes_max INT NOT NULL,
  metadata_bytes_max INT NOT NULL,
  batch_items_max INT NOT NULL,
  lease_ms_default BIGINT NOT NULL,
  lease_ms_max BIGINT NOT NULL,
  delay_ms_max BIGINT NOT NULL,
  ttl_ms_default BIGINT NOT NULL,
  ttl_ms_max BIGINT NOT NULL,
  attempts_max INT NOT NULL,
  enqueue_paused TINYINT NOT NULL DEFAULT 0,
  dequeue_paused TINYINT NOT NULL DEFAULT 0,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (number),
  UNIQUE KEY namespace_by_name (name)
) ENGINE=InnoDB;

-- One row: the highest number that this database gave. Shards may have seen higher ones, for it may have been restored
-- from an older state: they are asked, too.
CREATE TABLE namespace_number (
  one TINYINT NOT NULL,
  last INT UNSIGNED NOT NULL,
  PRIMARY KEY (one)
) ENGINE=InnoDB;

INSERT INTO namespace_number VALUES (1, 0);

-- A question to all shards (foqs/model/census.py). As long as its row is there, its namespace lets no item in.
CREATE TABLE census (
  id BIGINT UNSIGNED NOT NULL,
  namespace INT UNSIGNED NOT NULL,
  expires_at BIGINT NOT NULL,
  PRIMARY KEY (id)
) ENGINE=InnoDB;

CREATE TABLE census_answer (
  census BIGINT UNSIGNED NOT NULL,
  shard_id SMALLINT UNSIGNED NOT NULL,
  epoch BIGINT UNSIGNED NOT NULL,
  items_count BIGINT NOT NULL,
  number_max INT UNSIGNED NOT NULL,
  PRIMARY KEY (census, shard_id)
) ENGINE=InnoDB;

-- The epoch of a shard lives here and not in the shard, so that ids stay unique after a replica lost its tail.
CREATE TABLE shard (
  shard_id SMALLINT UNSIGNED NOT NULL,
  epoch BIGINT UNSIGNED NOT NULL,
  owner VARBINARY(128) NOT NULL,
  owned_since BIGINT NOT NULL,
  PRIMARY KEY (shard_id)
) ENGINE=InnoDB;

-- One row a living host, written once a second. Each host watches the others' rows by its own clock: whose row does not
-- change for 6 s, or is not there, is dead, and its sessions with shards may be killed.
CREATE TABLE host (
  name VARBINARY(128) NOT NULL,
  address VARBINARY(255) NOT NULL,
  started_at BIGINT NOT NULL,
  heartbeat_at BIGINT NOT NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB;
