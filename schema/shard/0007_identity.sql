-- Whose database this is: the id of the cluster, as its meta database has it (cluster_id), and the shard. The first host
-- that takes the shard over writes it with its name. Whoever finds another cluster or shard here leaves the database
-- alone (docs/decisions/0038-whose-database.md).
CREATE TABLE identity (
  one TINYINT NOT NULL,
  cluster VARBINARY(16) NOT NULL,
  shard_id SMALLINT UNSIGNED NOT NULL,
  PRIMARY KEY (one)
) ENGINE=InnoDB;
