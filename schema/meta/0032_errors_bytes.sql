-- How many bytes of its failures an item of the namespace keeps.
ALTER TABLE namespace ADD COLUMN errors_bytes_max INT NOT NULL DEFAULT 1024 AFTER dead_letter_on_expiry;
