-- Slots that are on their way to this shard (docs/decisions/0036-moving-slots.md): at most one row. As long as it is
-- there the shard takes no dedup ids of them. Its owner's transactions alone write it.
-- version: that of the slot table in which they lead here. slots: two bytes each.
CREATE TABLE slot_arrival (
  one TINYINT NOT NULL,
  version BIGINT UNSIGNED NOT NULL,
  from_shard SMALLINT UNSIGNED NOT NULL,
  slots VARBINARY(2048) NOT NULL,
  PRIMARY KEY (one)
) ENGINE=InnoDB;

-- The ids of a namespace that came with slots last: how far the log of the other shard is read (read_to), and from which
-- number on (first) and before which (moved_end) they stand in this one. Those from an earlier time are known twice.
CREATE TABLE slot_arrived (
  namespace INT UNSIGNED NOT NULL,
  version BIGINT UNSIGNED NOT NULL,
  slots VARBINARY(2048) NOT NULL,
  read_to BIGINT UNSIGNED NOT NULL,
  first BIGINT UNSIGNED NOT NULL,
  moved_end BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (namespace)
) ENGINE=InnoDB;
