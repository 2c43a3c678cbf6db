"""Tools for tests of programs that use foqs. `MemoryQueue` needs `pip install 'foqs[testing]'`; `items` needs only
foqs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foqs.testing.memory_queue import ManualClock, MemoryQueue

__all__ = ["ManualClock", "MemoryQueue"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'foqs.testing' has no attribute {name!r}")
    try:
        from foqs.testing import memory_queue
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "foqs":
            raise
        message = f"foqs.testing.{name} needs the package {error.name}: pip install 'foqs[testing]'"
        raise ModuleNotFoundError(message, name=error.name) from error
    return getattr(memory_queue, name)
