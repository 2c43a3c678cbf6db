"""The work beside the calls: services, their tasks, and threads for calls that block.

It must not know the work of a task, nor any value of the queue but errors and outages.
Begin with `service`, then `tasks` and `lane`.
"""
