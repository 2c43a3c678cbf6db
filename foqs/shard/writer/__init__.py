"""The writer of one shard: it opens the shard, runs its transactions and notices when it is lost."""
