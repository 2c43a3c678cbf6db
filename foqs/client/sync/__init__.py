"""The blocking clients.

All but `connections`, `coalescer` and `concurrency` is generated from `foqs.client.aio` by scripts/generate_sync.py.
"""

from __future__ import annotations

from foqs.client.sync.admin import AdminClient
from foqs.client.sync.client import Client

__all__ = ["AdminClient", "Client"]
