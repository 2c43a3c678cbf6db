-- How a host shows others that it is one of the cluster (docs/decisions/0042-proof-of-hosts.md). Hosts that do not write it
-- are of builds that know the first way alone.
ALTER TABLE host ADD COLUMN proof TINYINT NOT NULL DEFAULT 1;

-- The name of the cluster, `cluster` in the configuration of each host: the locks of shards have it in their names, so hosts
-- that do not agree on it would all take the same shards. It is taken by the first host that starts while none runs.
CREATE TABLE cluster_name (
  one TINYINT NOT NULL,
  name VARBINARY(64) NOT NULL,
  taken_at BIGINT NOT NULL,
  PRIMARY KEY (one)
) ENGINE=InnoDB;
