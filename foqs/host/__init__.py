"""Many shards as one queue: the work of a host for its callers, without Thrift types.

It knows no Thrift, no connection and no other host. `arguments` has the rules of the contract for arguments.
Begin with `verbs`, and follow the folders downwards: admission, registry, shards, dispatch.
"""
