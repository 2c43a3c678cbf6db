"""The operations of a shard: each owns its rows in a transaction and what follows of the transaction's end."""
