-- Bits of the fields which operators have set for a topic although they have the default's value, so that they override
-- the policy of a prefix (foqs/model/policy.py).
ALTER TABLE topic_policy ADD COLUMN explicit TINYINT UNSIGNED NOT NULL DEFAULT 0 AFTER weight;

-- What operators say of all topics that begin with a prefix. It is a table of its own, so that hosts which do not know
-- prefixes do not take them for topics.
CREATE TABLE topic_prefix_policy (
  namespace INT UNSIGNED NOT NULL,
  prefix VARBINARY(255) NOT NULL,
  enqueue_paused TINYINT NOT NULL,
  dequeue_paused TINYINT NOT NULL,
  reason VARBINARY(512) NOT NULL,
  deliveries_per_second_max DOUBLE NOT NULL,
  weight INT NOT NULL,
  explicit TINYINT UNSIGNED NOT NULL DEFAULT 0,
  PRIMARY KEY (namespace, prefix)
) ENGINE=InnoDB;
