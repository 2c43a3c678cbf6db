"""The meta database: one store with a module for each table or few, and scripts of one round trip.

It decides nothing for a host. Its methods block for a bounded time: call them from a worker thread.
Begin with `meta_store`, then the module of a table, such as `meta_namespaces`.
"""
