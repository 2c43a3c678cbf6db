-- The record of who changed what, and of who read payloads (docs/decisions/0054-audit.md). Hosts add rows and change none.
-- number: the count of the host's process, so that a row whose outcome was unknown can be written again.
-- took_ms, count: of the call, or of all calls of the same kind that the row sums up.
CREATE TABLE audit (
  at BIGINT NOT NULL,
  host VARBINARY(128) NOT NULL,
  number BIGINT UNSIGNED NOT NULL,
  request_id VARBINARY(64) NOT NULL,
  principal VARBINARY(64) NOT NULL,
  credential VARBINARY(255) NOT NULL,
  address VARBINARY(64) NOT NULL,
  verb VARBINARY(64) NOT NULL,
  namespace VARBINARY(64) NOT NULL,
  subject VARBINARY(512) NOT NULL,
  changes VARBINARY(2048) NOT NULL,
  outcome VARBINARY(64) NOT NULL,
  took_ms BIGINT NOT NULL,
  count BIGINT NOT NULL,
  PRIMARY KEY (at, host, number)
) ENGINE=InnoDB;
