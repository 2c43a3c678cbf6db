"""This host's view of the agreements of all hosts: namespaces, their census, slots and the moves of slots.

It knows no consumer and decides on no delivery. The meta database is asked on threads, and can be unreachable.
Begin with `namespaces`, then `known_slots`.
"""
