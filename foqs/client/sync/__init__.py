"""The blocking clients.

Generated from `foqs.client.aio` by scripts/generate_sync.py, except for this file and `coalescer`, `concurrency`,
`connections`, `late` and `monitor`.
"""

from __future__ import annotations

from foqs.client.sync.admin import AdminClient
from foqs.client.sync.client import Client

__all__ = ["AdminClient", "Client"]
