"""The event log of a host: how the lives of items end, in files, and counts of it by the minute.

It knows no shard and no dispatcher. An event that does not fit is dropped and counted: no caller waits for it.
Begin with `log_service`, then `lives` and `files`.
"""
