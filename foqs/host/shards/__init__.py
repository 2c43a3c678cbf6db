"""The shards of this host: the writer, the reader and the TTL scan of each, and how one leaves the host.

It knows no namespace and no verb, and does not decide which shards this host has.
Begin with `shards`, then `waiting` for calls that wait for a transaction.
"""
