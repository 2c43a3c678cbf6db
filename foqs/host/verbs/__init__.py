"""The verbs of the contract on the shards of this host, and pages of stored items.

A verb knows no Thrift and no other host, and keeps nothing between two calls but counts and bounds.
Begin with `enqueues` and `dequeues`; `table` finds the method of each verb by its name.
"""
