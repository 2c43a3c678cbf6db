"""The hosts of the cluster, and which of them are dead: heartbeats, and the watch of all others' heartbeats.

It knows no owner of a shard and no topic, and asks no clock but its own.
Begin with `membership`, then `host_watch` for the rule of death; `backends` has the places of heartbeats.
"""
