"""The structs of requests as they are decoded, and of messages between the hosts of a cluster.

requests.pyi has their fields for the type checker; scripts/generate_requests.py makes it from idl/foqs.thrift.
"""

from __future__ import annotations

from typing import Any

from foqs.wire.codec import structs


def __getattr__(name: str) -> Any:
    return getattr(structs, name)


def changed(request: Any, **fields: Any) -> Any:
    """Return a request like this one, with other values of these fields."""
    other = object.__new__(type(request))
    other.__dict__.update(request.__dict__, **fields)
    return other
