-- After how many failed attempts an item of the topic, or of topics with the prefix, becomes a dead letter; 0 for as many
-- as its namespace says.
ALTER TABLE topic_policy ADD COLUMN attempts_max INT NOT NULL DEFAULT 0 AFTER weight;
ALTER TABLE topic_prefix_policy ADD COLUMN attempts_max INT NOT NULL DEFAULT 0 AFTER weight;
