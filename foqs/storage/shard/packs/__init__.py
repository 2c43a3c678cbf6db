"""Packs: rows that hold many items, and the index of their items in memory.

It knows no session: the store runs the statements. It has no clock, thread, socket or chance of its own.
Begin with `pack_index`.
"""
