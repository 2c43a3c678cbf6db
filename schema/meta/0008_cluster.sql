-- Hosts share the shards of a cluster (docs/decisions/0031-sharing-shards.md). The name in `host` is that of one process:
-- the name of the host and the time of its start. Whose beat_number does not change for 6 s is dead.
ALTER TABLE host ADD COLUMN beat_number BIGINT UNSIGNED NOT NULL DEFAULT 0 AFTER heartbeat_at;
-- state is 0 while the host serves, and 1 once it wants to hand its shards on and end.
ALTER TABLE host ADD COLUMN state TINYINT NOT NULL DEFAULT 0 AFTER beat_number;
ALTER TABLE host ADD COLUMN tier VARBINARY(64) NOT NULL DEFAULT '' AFTER state;

-- place is the URL of the shard's database without user and password, or empty where only the hosts' own configurations
-- know it. state: 0 is serving, 1 is draining and takes no new items, 2 was removed and is served by nobody.
ALTER TABLE shard ADD COLUMN place VARBINARY(255) NOT NULL DEFAULT '' AFTER owned_since;
ALTER TABLE shard ADD COLUMN state TINYINT NOT NULL DEFAULT 0 AFTER place;
-- Hosts of this tier serve it.
ALTER TABLE shard ADD COLUMN tier VARBINARY(64) NOT NULL DEFAULT '' AFTER state;
-- The name of the host that is to serve it while it is there, or empty.
ALTER TABLE shard ADD COLUMN pinned_to VARBINARY(128) NOT NULL DEFAULT '' AFTER tier;
-- The process that is ready to take it over from its living owner, or empty.
ALTER TABLE shard ADD COLUMN moving_to VARBINARY(128) NOT NULL DEFAULT '' AFTER pinned_to;
-- When place, state, tier or pinned_to was changed last, by this server's clock.
ALTER TABLE shard ADD COLUMN changed_at BIGINT NOT NULL DEFAULT 0 AFTER moving_to;
