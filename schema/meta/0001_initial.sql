-- The meta database: what all hosts of a cluster share. Hosts keep serving what they own without it.

-- Numbers stand in the rows of the shards. AUTO_INCREMENT is persistent from MariaDB 10.2.4 and MySQL 8.0 on,
-- so the number of a deleted namespace never comes back.
CREATE TABLE namespace (
  number INT UNSIGNED NOT NULL AUTO_INCREMENT,
  name VARBINARY(64) NOT NULL,
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

-- The epoch of a shard lives here and not in the shard, so that ids stay unique after a replica lost its tail.
CREATE TABLE shard (
  shard_id SMALLINT UNSIGNED NOT NULL,
  epoch BIGINT UNSIGNED NOT NULL,
  owner VARBINARY(128) NOT NULL,
  owned_since BIGINT NOT NULL,
  PRIMARY KEY (shard_id)
) ENGINE=InnoDB;

-- One row a living host; a row whose heartbeat stopped is a dead host, whose session may be killed.
CREATE TABLE host (
  name VARBINARY(128) NOT NULL,
  address VARBINARY(255) NOT NULL,
  started_at BIGINT NOT NULL,
  heartbeat_at BIGINT NOT NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB;
