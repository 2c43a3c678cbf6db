"""The principals, grants and credentials that this host knows, and the calls that were refused.

It knows contract and model only, and no connection. A snapshot never changes: a change makes another one.
Begin with `snapshot`, then `book`.
"""
