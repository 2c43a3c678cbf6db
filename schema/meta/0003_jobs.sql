-- Records of jobs (foqs/model/jobs.py), a bounded number of them, each for 30 days after its last update. Times are those
-- of this server's clock. The counts are of processes that are gone; those that are there have rows of their own.
CREATE TABLE job (
  namespace INT UNSIGNED NOT NULL,
  id VARBINARY(128) NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  state TINYINT NOT NULL,
  items_per_second_max BIGINT NOT NULL,
  items_count BIGINT NOT NULL,
  duplicates_count BIGINT NOT NULL,
  rejected_count BIGINT NOT NULL,
  rows_count BIGINT NOT NULL,
  detail VARBINARY(4096) NOT NULL,
  PRIMARY KEY (namespace, id),
  KEY job_by_update (updated_at)
) ENGINE=InnoDB;

-- What one process of a host has counted of a job in all, which it writes again and again: a count that is written twice
-- counts once. active_at tells how many hosts serve the job now, among whom its rate is divided.
CREATE TABLE job_host (
  namespace INT UNSIGNED NOT NULL,
  job VARBINARY(128) NOT NULL,
  host VARBINARY(128) NOT NULL,
  started_at BIGINT NOT NULL,
  active_at BIGINT NOT NULL,
  items_count BIGINT NOT NULL,
  duplicates_count BIGINT NOT NULL,
  rejected_count BIGINT NOT NULL,
  PRIMARY KEY (namespace, job, host, started_at)
) ENGINE=InnoDB;
