-- The dedup ids that items hold: each is taken as long as its item lives (docs/decisions/0069-held-dedup-ids.md). A row for each
-- copy of such an item, which comes with the item and goes with it, or when it becomes a dead letter.
-- id: the key of the item. shard_id: its shard, which is another one where the slot of the id has come from there since;
-- then one row stands for all copies. first: the key of the first copy.
CREATE TABLE held_id (
  id BIGINT UNSIGNED NOT NULL,
  shard_id SMALLINT UNSIGNED NOT NULL,
  namespace INT UNSIGNED NOT NULL,
  digest BINARY(16) NOT NULL,
  first BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (id, shard_id),
  KEY by_digest (namespace, digest, shard_id, first)
) ENGINE=InnoDB STATS_PERSISTENT=1 STATS_AUTO_RECALC=0;
