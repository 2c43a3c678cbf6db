"""Many hosts as one queue: the membership, the owners of shards, and the moves of shards between hosts.

This package knows hosts and shards, but not how calls come in.
"""
