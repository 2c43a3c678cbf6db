-- The place of an item of a topic that ages (docs/decisions/0066-aging.md): its urgency while it is ready. NULL: its priority.
ALTER TABLE item ADD COLUMN place INT NULL;
