"""The places where hosts keep their heartbeats: rows of the meta database, or nodes of ZooKeeper.

A backend reads and writes, and judges no host. Only `zookeeper_backend` may import the client of ZooKeeper.
Begin with `choice`, then `meta_backend`.
"""
