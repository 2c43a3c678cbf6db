"""The state of one shard: pure, with the time as an argument, and written down transaction by transaction."""
