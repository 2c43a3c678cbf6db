"""Every verb on all shards of the cluster, on any host: the split of a call, the other hosts' parts, and the merge.

It knows no Thrift and no connection: another host is a `Peer` with the same verbs.
Begin with `router`, then `routes`; `pulls` has the dequeues, and `peer_door` the calls of other hosts.
"""
