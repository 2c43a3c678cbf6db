-- True once the place of the shard was changed: URLs in the configurations of hosts can lead to its former database.
ALTER TABLE shard ADD COLUMN is_relocated TINYINT NOT NULL DEFAULT 0;
