-- Copies of a shard's database are told apart by the server that they are on (docs/decisions/0046-one-place-of-a-shard.md).
-- server is the one on which the owner serves the shard, or empty: then whoever has the shard's lock may take it.
ALTER TABLE shard ADD COLUMN server VARBINARY(255) NOT NULL DEFAULT '' AFTER changed_at;
-- The number of the shard's last transaction when the epoch was taken.
ALTER TABLE shard ADD COLUMN first_number BIGINT UNSIGNED NOT NULL DEFAULT 0 AFTER server;
-- The same as the owner said it last: what a database lacks of it, was lost.
ALTER TABLE shard ADD COLUMN last_number BIGINT UNSIGNED NOT NULL DEFAULT 0 AFTER first_number;
