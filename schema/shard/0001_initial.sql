-- One shard. Every change of these tables comes from the one session that holds the shard's named lock.

-- One row an item, young ones excepted: those are in packs (docs/decisions/0014-packs.md). Hosts know the columns from
-- foqs/storage/schema/item_columns.py.
-- lane: the topic's number while ready or under lease, 0 while delayed, the topic's number negated once dead.
-- urgency: the priority, or 0 in lane 0 and among the dead. due_at: deliver_after, or the time of death.
-- The index serves every query: the most urgent of a topic, the delays that are due, the dead in order, the counts.
CREATE TABLE item (
  id BIGINT UNSIGNED NOT NULL,
  lane INT NOT NULL,
  urgency INT NOT NULL,
  due_at BIGINT NOT NULL,
  topic INT NOT NULL,
  priority INT NOT NULL,
  enqueued_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  lease_ms INT UNSIGNED NOT NULL,
  at_most_once TINYINT NOT NULL,
  deliveries INT UNSIGNED NOT NULL DEFAULT 0,
  failed_attempts INT UNSIGNED NOT NULL DEFAULT 0,
  death_reason VARBINARY(255) NULL,
  payload MEDIUMBLOB NOT NULL,
  metadata BLOB NOT NULL,
  PRIMARY KEY (id),
  KEY lane_order (lane, urgency, due_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC STATS_PERSISTENT=1 STATS_AUTO_RECALC=0;

-- A pack holds items that came together and were ready, as foqs/storage/shard/formats.py writes them.
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

-- The claim journal: one row leases many items, packed as (id, delivery number) pairs.
-- The latest entry of an item counts, and only if its number is the row's deliveries + 1.
-- due_at: on the steady clock of the writer row.
-- ahead: 1 when it was made before it was known who would get the items, or whether anybody would; 0 when it was made
-- for a call.
CREATE TABLE claim (
  id BIGINT UNSIGNED NOT NULL,
  due_at BIGINT NOT NULL,
  ahead TINYINT NOT NULL,
  entries MEDIUMBLOB NOT NULL,
  PRIMARY KEY (id)
) ENGINE=InnoDB STATS_PERSISTENT=1 STATS_AUTO_RECALC=0;

-- Topics are numbers in the item rows; a topic's row goes when its last item is gone.
CREATE TABLE topic (
  number INT NOT NULL,
  namespace INT UNSIGNED NOT NULL,
  name VARBINARY(255) NOT NULL,
  PRIMARY KEY (number),
  UNIQUE KEY topic_by_name (namespace, name)
) ENGINE=InnoDB;

-- The namespaces that have, or had, topics here, by the names they had then. A number never gets another name: so a
-- meta database that was restored from an older state is found to give it another one. The greatest number stays for
-- ever, so that it is known which numbers were used.
CREATE TABLE namespace (
  number INT UNSIGNED NOT NULL,
  name VARBINARY(64) NOT NULL,
  PRIMARY KEY (number)
) ENGINE=InnoDB;

-- One row: the owner, and how far it came. Every transaction writes it, so that after a lost answer
-- the number of the last transaction tells whether it happened.
CREATE TABLE writer (
  one TINYINT NOT NULL,
  epoch BIGINT UNSIGNED NOT NULL,
  owner VARBINARY(128) NOT NULL,
  transaction_number BIGINT UNSIGNED NOT NULL,
  -- No delayed item is due before this time.
  delay_checkpoint BIGINT NOT NULL,
  -- No open claim has a smaller id.
  claim_checkpoint BIGINT UNSIGNED NOT NULL,
  -- No number up to this one is free for a new topic.
  topic_number_last INT NOT NULL,
  -- The owner's session: only this one may be killed when the owner is dead, not that of a faster contender.
  session_id BIGINT UNSIGNED NOT NULL,
  -- The clock that leases and claims count on: it goes on from here under the next owner, and never steps.
  steady_ms BIGINT NOT NULL,
  PRIMARY KEY (one)
) ENGINE=InnoDB;

INSERT INTO writer VALUES (1, 0, '', 0, 0, 0, 0, 0, 0);
