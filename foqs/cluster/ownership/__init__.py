"""The owners of shards: those that this host knows, the plan for all, and the work of this host to follow the plan.

It knows no call and no topic, and not the contents of a shard.
Begin with `owner_map`, then `decision` and `sharing`.
"""
