-- Whether items of a namespace that expire and never failed become dead letters.
ALTER TABLE namespace ADD COLUMN dead_letter_on_expiry BIGINT NOT NULL DEFAULT 0 AFTER tier;
