-- The last failed attempts of an item, the newest first, as foqs/model/failures.py writes them; '' for none.
ALTER TABLE item ADD COLUMN errors VARBINARY(2048) NOT NULL DEFAULT '', ALGORITHM=INSTANT;
