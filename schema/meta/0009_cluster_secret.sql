-- What the hosts of a cluster show each other that they are: who can read it, can call them as a host.
CREATE TABLE cluster_secret (
  one TINYINT NOT NULL,
  secret VARBINARY(64) NOT NULL,
  PRIMARY KEY (one)
) ENGINE=InnoDB;
