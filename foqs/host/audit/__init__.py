"""The audit of a host: who changed what, and who read payloads (docs/decisions/0054-audit.md).

It knows no other host, and has its calls from the router. No call waits for the meta database because of it.
Begin with `trail`; `sums` adds up records of the same kind.
"""
