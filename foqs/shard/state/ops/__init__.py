"""The operations of a shard. Each owns its rows in a transaction, and the effects of the transaction's end."""
