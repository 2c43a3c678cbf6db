"""The package of what the shards of one MySQL server share."""
