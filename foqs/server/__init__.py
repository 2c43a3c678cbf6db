"""The package of everything that the shards of one MySQL server share."""
