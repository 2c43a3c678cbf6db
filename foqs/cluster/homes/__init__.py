"""The homes of topics and of caps: each has one host to which the others report, and which they ask.

It knows no owner of a shard and moves no item: a home answers with a host, and `routing` calls that host.
Begin with `home_table`, then `topic_homes` and `directory`; for caps, `cap_homes` and `cap_ledger`.
"""
