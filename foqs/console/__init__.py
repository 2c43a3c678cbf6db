"""The console: web pages on a queue for people, from one process beside it that is a client as any other.

It must not know the code of hosts: hosts see its calls alone, and check each by the principal of its viewer.
Begin with `console_app`, then `poller`, `topic_index` and `viewers`.
"""
