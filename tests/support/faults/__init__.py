"""Load that is recorded, and what can go wrong under it: shared by tests/e2e and by the loads of loadtest."""


class FaultError(Exception):
    """The harness could not do what it should; this says nothing about the queue."""
