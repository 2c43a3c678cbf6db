"""The state of one shard: pure, told the time, and written down transaction by transaction."""
