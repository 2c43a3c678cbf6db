-- The definitions of bulk jobs (foqs/model/bulk_work.py), beside their records in `job`. deliver_after is the time that
-- redriven items of the job wait for, 0 for none, and error the reason why hosts have paused the job.
CREATE TABLE bulk_job (
  namespace INT UNSIGNED NOT NULL,
  job VARBINARY(128) NOT NULL,
  work BLOB NOT NULL,
  deliver_after BIGINT NOT NULL,
  error VARBINARY(512) NOT NULL,
  PRIMARY KEY (namespace, job)
) ENGINE=InnoDB;

-- The bulk jobs that run, which all hosts read.
CREATE TABLE bulk_running (
  namespace INT UNSIGNED NOT NULL,
  job VARBINARY(128) NOT NULL,
  PRIMARY KEY (namespace, job)
) ENGINE=InnoDB;

-- The part of each shard. It has begun once as_of is not 0. Items up to after_key are done; of those up to page_to, the ones
-- with page_keys are in work (8 bytes each). A row with a higher epoch is never taken by an earlier owner of the shard, and each write
-- has the version that it has read, so that no late one undoes another.
CREATE TABLE bulk_part (
  namespace INT UNSIGNED NOT NULL,
  job VARBINARY(128) NOT NULL,
  shard_id SMALLINT UNSIGNED NOT NULL,
  epoch BIGINT NOT NULL,
  version BIGINT NOT NULL,
  active_at BIGINT NOT NULL,
  as_of BIGINT NOT NULL,
  to_key BIGINT UNSIGNED NOT NULL,
  after_key BIGINT UNSIGNED NOT NULL,
  page_to BIGINT UNSIGNED NOT NULL,
  page_keys MEDIUMBLOB NOT NULL,
  of_items BIGINT NOT NULL,
  examined BIGINT NOT NULL,
  matched BIGINT NOT NULL,
  done BIGINT NOT NULL,
  skipped BIGINT NOT NULL,
  failed BIGINT NOT NULL,
  is_done TINYINT NOT NULL,
  is_recounted TINYINT NOT NULL,
  error VARBINARY(512) NOT NULL,
  PRIMARY KEY (namespace, job, shard_id)
) ENGINE=InnoDB;
