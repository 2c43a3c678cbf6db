-- How many items of an ordering key, or of a serial topic, one dequeue gets together; 0 for one.
ALTER TABLE topic_policy ADD COLUMN key_batch INT NOT NULL DEFAULT 0 AFTER key_buckets;
ALTER TABLE topic_prefix_policy ADD COLUMN key_batch INT NOT NULL DEFAULT 0 AFTER key_buckets;
