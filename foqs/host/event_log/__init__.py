"""The event log of a host: the ends of items' lives, in files, and minute roll-ups.

It knows no shard and no dispatcher. An event that does not fit is dropped and counted: no caller waits for it.
Begin with `log_service`, then `lives` and `files`.
"""
