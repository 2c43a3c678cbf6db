"""The choice of who gets which item: demand, turns, caps, prefetching and delivery, on the event loop alone.

It knows no verb, no name of a namespace and no meta database; it asks shards to claim, and settles nothing.
Begin with `dispatcher`, which names its parts, then `topic_queue` for the state of one topic.
"""
