-- How many sequences the ordering keys of a topic, or of topics with the prefix, share; 0 for one for each key.
ALTER TABLE topic_policy ADD COLUMN key_buckets INT NOT NULL DEFAULT 0 AFTER in_flight_max;
ALTER TABLE topic_prefix_policy ADD COLUMN key_buckets INT NOT NULL DEFAULT 0 AFTER in_flight_max;
