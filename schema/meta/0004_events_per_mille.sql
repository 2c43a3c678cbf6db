-- How many in a thousand items of a namespace the event log takes down.
ALTER TABLE namespace ADD COLUMN events_per_mille INT NOT NULL DEFAULT 0 AFTER dedup_when_away;
