"""Load that is recorded, and what can go wrong under it: shared by the power cuts, the chaos and tests/e2e."""


class FaultError(Exception):
    """The harness could not do what it should; this says nothing about the queue."""
