-- The consumer groups of topics (foqs/model/groups.py). `topic` is the hidden name of the group's topic, so that a row of
-- the topic's own group, "", has the name of the topic.
CREATE TABLE topic_group (
  namespace INT UNSIGNED NOT NULL,
  topic VARBINARY(255) NOT NULL,
  is_deleted TINYINT NOT NULL,
  ttl_ms BIGINT NOT NULL,
  delay_ms BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (namespace, topic)
) ENGINE=InnoDB;

-- The hidden name of the topic whose items a census counts, and its namespace, which stays open; '' for none.
ALTER TABLE census ADD COLUMN topic_namespace INT UNSIGNED NOT NULL DEFAULT 0;
ALTER TABLE census ADD COLUMN topic VARBINARY(255) NOT NULL DEFAULT '';
