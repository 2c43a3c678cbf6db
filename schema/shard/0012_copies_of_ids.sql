-- The number of copies behind the first one of the item that holds an id, for the groups of its topic; 0 for rows from
-- before. From this migration on, a row of `seen` whose items have copies has their numbers too (version 12 of its format).
ALTER TABLE held_id ADD COLUMN copies TINYINT UNSIGNED NOT NULL DEFAULT 0, ALGORITHM=INSTANT;
