-- Whether a host has not opened its port yet: until then it has no address to tell.
ALTER TABLE host ADD COLUMN is_starting TINYINT NOT NULL DEFAULT 0;
