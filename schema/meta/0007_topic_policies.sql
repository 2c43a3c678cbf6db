-- What operators say of single topics (foqs/model/policy.py). A topic with nothing but defaults has no row.
CREATE TABLE topic_policy (
  namespace INT UNSIGNED NOT NULL,
  topic VARBINARY(255) NOT NULL,
  enqueue_paused TINYINT NOT NULL,
  dequeue_paused TINYINT NOT NULL,
  reason VARBINARY(512) NOT NULL,
  deliveries_per_second_max DOUBLE NOT NULL,
  weight INT NOT NULL,
  PRIMARY KEY (namespace, topic)
) ENGINE=InnoDB;

-- The cap of a namespace, in items a second, or 0; why it is paused; and another number with every change of a policy of
-- one of its topics, so that hosts read the policies of those namespaces alone where one has changed.
ALTER TABLE namespace ADD COLUMN deliveries_per_second_max DOUBLE NOT NULL DEFAULT 0 AFTER events_per_mille;
ALTER TABLE namespace ADD COLUMN pause_reason VARBINARY(512) NOT NULL DEFAULT '' AFTER deliveries_per_second_max;
ALTER TABLE namespace ADD COLUMN policies_version BIGINT UNSIGNED NOT NULL DEFAULT 0 AFTER pause_reason;
