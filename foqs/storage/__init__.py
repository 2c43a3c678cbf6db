"""MySQL: sessions, statements, transactions, packs, migrations, and the meta database.

It decides nothing about an item, and starts no thread and no task.
Begin with `shard`, then `meta`; both stand on `schema` and `sessions`.
"""
