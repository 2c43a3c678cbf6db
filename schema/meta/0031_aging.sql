-- The wait in which items of a topic, or of topics with the prefix, become more urgent by one priority; 0 for strict priorities.
ALTER TABLE topic_policy ADD COLUMN aging_ms_per_priority INT NOT NULL DEFAULT 0 AFTER key_batch;
ALTER TABLE topic_prefix_policy ADD COLUMN aging_ms_per_priority INT NOT NULL DEFAULT 0 AFTER key_batch;
