-- Whether a topic, or topics with the prefix, deliver one item at a time in order, and what a dead letter does to the others:
-- 0 the next item is delivered, 1 none until it is gone (foqs/model/serial.py).
ALTER TABLE topic_policy
  ADD COLUMN serial TINYINT NOT NULL DEFAULT 0 AFTER backoff_ms_max,
  ADD COLUMN on_dead TINYINT NOT NULL DEFAULT 0 AFTER serial;
ALTER TABLE topic_prefix_policy
  ADD COLUMN serial TINYINT NOT NULL DEFAULT 0 AFTER backoff_ms_max,
  ADD COLUMN on_dead TINYINT NOT NULL DEFAULT 0 AFTER serial;

-- The topics, prefixes and slots that take no items while the census is open (foqs/model/census.py). An answer has a bit
-- for each, and none from a build that does not know them.
ALTER TABLE census ADD COLUMN closes MEDIUMBLOB NULL;
ALTER TABLE census_answer ADD COLUMN held VARBINARY(160) NOT NULL DEFAULT '';
