-- The depth of a topic, or of each topic with the prefix, from which on enqueues are refused; 0 for no limit. Whether its
-- items that expire and never failed become dead letters: 0 as its namespace says, 1 yes, 2 no. The delay after the first
-- failed attempt, which doubles with each further one, and the longest such delay; 0 for none. There are more fields now
-- than `explicit` had bits.
ALTER TABLE topic_policy
  ADD COLUMN depth_max BIGINT NOT NULL DEFAULT 0 AFTER attempts_max,
  ADD COLUMN dead_letter_on_expiry TINYINT NOT NULL DEFAULT 0 AFTER depth_max,
  ADD COLUMN backoff_ms BIGINT NOT NULL DEFAULT 0 AFTER dead_letter_on_expiry,
  ADD COLUMN backoff_ms_max BIGINT NOT NULL DEFAULT 0 AFTER backoff_ms,
  MODIFY COLUMN explicit INT UNSIGNED NOT NULL DEFAULT 0;
ALTER TABLE topic_prefix_policy
  ADD COLUMN depth_max BIGINT NOT NULL DEFAULT 0 AFTER attempts_max,
  ADD COLUMN dead_letter_on_expiry TINYINT NOT NULL DEFAULT 0 AFTER depth_max,
  ADD COLUMN backoff_ms BIGINT NOT NULL DEFAULT 0 AFTER dead_letter_on_expiry,
  ADD COLUMN backoff_ms_max BIGINT NOT NULL DEFAULT 0 AFTER backoff_ms,
  MODIFY COLUMN explicit INT UNSIGNED NOT NULL DEFAULT 0;
