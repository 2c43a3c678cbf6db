-- The gates of slots: the serial topics of the slot are delivered from from_shard, and to_shard waits until the gate is gone
-- (foqs/model/slot_gates.py). At most one row for each slot and shard that still has items of it.
CREATE TABLE slot_gate (
  slot SMALLINT UNSIGNED NOT NULL,
  from_shard SMALLINT UNSIGNED NOT NULL,
  to_shard SMALLINT UNSIGNED NOT NULL,
  id BIGINT UNSIGNED NOT NULL,
  state TINYINT NOT NULL,
  since_ms BIGINT NOT NULL,
  PRIMARY KEY (slot, from_shard)
) ENGINE=InnoDB;
