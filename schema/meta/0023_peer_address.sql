-- The address at which other hosts call a host; empty if it is that for clients as well (docs/decisions/0063-peer-port.md).
-- It is NULL for hosts of builds that do not know it, which call the port for clients of all others.
ALTER TABLE host ADD COLUMN peer_address VARBINARY(255) NULL DEFAULT NULL;
