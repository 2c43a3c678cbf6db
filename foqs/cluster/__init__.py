"""Many hosts as one queue: who there is, which shards each one serves, and how these go from one to another.

It knows hosts and shards, and nothing of how calls come in.
"""
