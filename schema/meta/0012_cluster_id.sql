-- The id of the cluster, which its shards have in their databases, too (docs/decisions/0038-whose-database.md). It is made
-- when the first shard is taken over, and comes back from the shards, or from the hosts that run, where it was lost.
CREATE TABLE cluster_id (
  one TINYINT NOT NULL,
  id VARBINARY(16) NOT NULL,
  PRIMARY KEY (one)
) ENGINE=InnoDB;
