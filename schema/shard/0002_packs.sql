-- Young items have no rows of their own: docs/decisions/0014-packs.md.

-- A pack holds items that came together and were ready, as foqs/storage/packing.py writes them.
CREATE TABLE pack (
  id BIGINT UNSIGNED NOT NULL,
  items MEDIUMBLOB NOT NULL,
  PRIMARY KEY (id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC STATS_PERSISTENT=1 STATS_AUTO_RECALC=0;

-- One row a transaction: the keys of the items that left their packs with it, because they are gone or have got rows
-- of their own. It goes with a later transaction, once no pack with a smaller id is there.
CREATE TABLE tombstone (
  id BIGINT UNSIGNED NOT NULL,
  entries MEDIUMBLOB NOT NULL,
  PRIMARY KEY (id)
) ENGINE=InnoDB STATS_PERSISTENT=1 STATS_AUTO_RECALC=0;
