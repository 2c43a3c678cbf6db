-- The next secret of the cluster while hosts get to know it, empty if there is none, and the time of its proposal
-- (docs/decisions/0059-rotation.md).
ALTER TABLE cluster_secret
  ADD COLUMN next VARBINARY(64) NOT NULL DEFAULT '',
  ADD COLUMN began_at BIGINT NOT NULL DEFAULT 0;
-- The ids of the secrets that a host knows, each after a space but the first. Hosts that do not write it are of builds that
-- read the secret at their start alone.
ALTER TABLE host ADD COLUMN secret_ids VARBINARY(64) NOT NULL DEFAULT '';
