-- The dedup ids that were seen lately, in the order in which they came: a log of each namespace, which goes from its
-- beginning. A row has ids of one transaction, as foqs/storage/shard/formats.py writes them, and never crosses a multiple of
-- 128 of the namespace's numbers, so that a block of 128 ids is one range of the key
-- (docs/decisions/0025-dedup.md).
-- first: the number of the first id of the row; the last row of a namespace stays, so that numbers go on.
-- at_ms: when they came, on the steady clock of the writer row.
CREATE TABLE seen (
  namespace INT UNSIGNED NOT NULL,
  first BIGINT UNSIGNED NOT NULL,
  at_ms BIGINT NOT NULL,
  entries VARBINARY(4096) NOT NULL,
  PRIMARY KEY (namespace, first)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC STATS_PERSISTENT=1 STATS_AUTO_RECALC=0;
