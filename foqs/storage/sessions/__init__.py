"""Sessions with a MySQL server: its place, the login, the variables of a session, and the exchange over it.

It knows no table.
Begin with `session`, then `login` for the use of passwords and `exchange` for many statements in one round trip.
"""
