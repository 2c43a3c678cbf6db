"""The queues that can be measured, by name: every module of loadtest/peers that has an adapter of its name."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

from loadtest import peers
from loadtest.peers.adapter import Adapter

FIRST = ("foqs", "raw")


class NotInstalledError(Exception):
    """What of it is missing."""


def queue_names() -> list[str]:
    """foqs and plain SQL first."""
    found = {module.name for module in pkgutil.iter_modules(peers.__path__) if not module.ispkg}
    return [*FIRST, *sorted(name for name in found - {*FIRST} if _is_named_in(name))]


def new_adapter(name: str) -> Adapter:
    """Raises NotInstalledError when a Python package that it uses is missing."""
    try:
        module = import_module(f"{peers.__name__}.{name}")
    except ModuleNotFoundError as error:
        raise NotInstalledError(f"the Python package {error.name} is not installed") from error
    adapter: Adapter = next(
        value() for value in vars(module).values() if isinstance(value, type) and getattr(value, "name", None) == name
    )
    return adapter


def _is_named_in(name: str) -> bool:
    """Without importing it, for what it imports may not be installed."""
    spec = next(module for module in pkgutil.iter_modules(peers.__path__) if module.name == name)
    assert spec.module_finder is not None
    found = spec.module_finder.find_spec(name, None)
    return found is not None and found.origin is not None and f'name = "{name}"' in Path(found.origin).read_text()
