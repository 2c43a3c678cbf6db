-- The items that the part of a bulk job has passed over and comes to again (8 bytes each; NULL for none).
ALTER TABLE bulk_part ADD COLUMN later_keys MEDIUMBLOB NULL AFTER page_keys;

-- The parts that are still open are counted without their rows, which hold the keys of pages.
CREATE INDEX bulk_part_by_progress ON bulk_part (namespace, job, is_done, shard_id, page_to);
