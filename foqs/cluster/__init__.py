"""Many hosts as one queue: which hosts live, which shards each one serves, and which host is asked for what.

It knows hosts and shards, no Thrift, and not the contents of a shard.
Begin with `members`, then `ownership` and `homes`; `routing` puts them together for callers.
"""
