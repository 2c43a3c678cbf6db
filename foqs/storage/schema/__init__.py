"""The tables as the code sees them: the columns of an item, the statements on a shard, and the migrations.

It knows no transaction and no state in memory.
Begin with `item_columns`: a new field of items is a line there, and a migration in schema/shard.
"""
