"""The other hosts: their calls and answers, which are checked here, and the notices that this host sends to them.

It knows no home, no owner of a shard and no connection.
Begin with `peer_table`, then `guarded_peers` and `courier`.
"""
