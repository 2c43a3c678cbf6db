"""What runs beside the calls: services, their tasks, and threads for calls that block.

It must not know what a task does, nor any value of the queue but errors and outages.
Begin with `service`, then `tasks` and `lane`.
"""
