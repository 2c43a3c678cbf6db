-- The job that copies the items that waited when a group was created ('': none), and whether it runs.
ALTER TABLE topic_group ADD COLUMN copy_job VARBINARY(64) NOT NULL DEFAULT '';
ALTER TABLE topic_group ADD COLUMN is_copying TINYINT NOT NULL DEFAULT 0;

-- What each shard has copied for a group whose job runs. `topic` is the hidden name of the group's topic.
CREATE TABLE group_copy (
  namespace INT UNSIGNED NOT NULL,
  topic VARBINARY(255) NOT NULL,
  shard_id INT UNSIGNED NOT NULL,
  copied BIGINT UNSIGNED NOT NULL,
  is_done TINYINT NOT NULL,
  PRIMARY KEY (namespace, topic, shard_id)
) ENGINE=InnoDB;
