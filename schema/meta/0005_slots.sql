-- Which shard takes the dedup ids of a slot (docs/decisions/0026-slots.md). Empty until the first namespace is created or
-- the first dedup id comes; 1,024 rows from then on. Each shard has a copy, so that a table that was lost comes back.
CREATE TABLE slot (
  slot SMALLINT UNSIGNED NOT NULL,
  shard SMALLINT UNSIGNED NOT NULL,
  version BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (slot)
) ENGINE=InnoDB;

-- The version of the table that the shard, or its owner, knows; 0 for none.
ALTER TABLE census_answer ADD COLUMN slots_version BIGINT UNSIGNED NOT NULL DEFAULT 0;
