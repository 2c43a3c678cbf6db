-- A copy of the meta database's table slot: the shard by slot, two bytes each. A meta database that has lost the table
-- gets it back from here. No dedup id comes to the shard before the copy is here. The reader's session writes it, not
-- the writer's: whoever owned the shard, the highest version is right.
CREATE TABLE slot_copy (
  one TINYINT NOT NULL,
  version BIGINT UNSIGNED NOT NULL,
  shards VARBINARY(2048) NOT NULL,
  PRIMARY KEY (one)
) ENGINE=InnoDB;
