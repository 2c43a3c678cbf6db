-- '' for none.
ALTER TABLE item ADD COLUMN trace_context VARBINARY(128) NOT NULL DEFAULT '';
