-- Images of the tables that a shard's memory has of the dedup ids of its log, so that a new owner need not read all of
-- the log. They are made of what the log has, and may all be deleted at any time: then the log is read
-- (docs/decisions/0025-dedup.md).
-- first, ids_count: the stretch of the namespace's numbers in the log that the image knows.
-- part: part 0 is written last and has checksums of the others; without it the image counts for nothing.
CREATE TABLE seen_table (
  namespace INT UNSIGNED NOT NULL,
  first BIGINT UNSIGNED NOT NULL,
  ids_count INT UNSIGNED NOT NULL,
  part SMALLINT UNSIGNED NOT NULL,
  body MEDIUMBLOB NOT NULL,
  PRIMARY KEY (namespace, first, ids_count, part)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC STATS_PERSISTENT=1 STATS_AUTO_RECALC=0;
