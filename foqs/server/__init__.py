"""What the shards of one MySQL server share."""
