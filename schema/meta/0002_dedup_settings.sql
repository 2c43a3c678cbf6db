-- How a namespace knows dedup ids again. dedup_scope and dedup_when_away are numbers of foqs/model/namespace.py.
-- key_spread and dedup_scope stay as they are from the creation on.
ALTER TABLE namespace ADD COLUMN dedup_ms BIGINT NOT NULL DEFAULT 604800000 AFTER dequeue_paused;
ALTER TABLE namespace ADD COLUMN dedup_ids BIGINT NOT NULL DEFAULT 1000000 AFTER dedup_ms;
ALTER TABLE namespace ADD COLUMN dedup_scope TINYINT NOT NULL DEFAULT 0 AFTER dedup_ids;
ALTER TABLE namespace ADD COLUMN key_spread INT NOT NULL DEFAULT 1 AFTER dedup_scope;
ALTER TABLE namespace ADD COLUMN dedup_when_away TINYINT NOT NULL DEFAULT 0 AFTER key_spread;
