-- The tier of a namespace: its items go to the shards of that tier alone (docs/operations.md, Tiers).
ALTER TABLE namespace ADD COLUMN tier VARBINARY(64) NOT NULL DEFAULT '' AFTER pause_reason;
