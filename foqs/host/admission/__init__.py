"""The admission of enqueues and their placement on shards: quotas, jobs, the bulk lane.

It knows no verb: the caller is let in, waits or is refused, and inserts the items itself.
Begin with `quotas`, then `account` for the tokens of one namespace.
"""
