"""One shard in MySQL: its transactions, the reads beside them, its packs, and the work of a new owner.

It does not decide on the life of an item, and knows no other shard.
Begin with `shard_store`, then `script` for a transaction as statements; `packs` has rows of many items.
"""
