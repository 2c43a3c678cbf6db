"""The asyncio clients, written by hand. The blocking ones in `foqs.client.sync` are generated from them."""

from __future__ import annotations

from foqs.client.aio.admin import AsyncAdminClient
from foqs.client.aio.client import AsyncClient

__all__ = ["AsyncAdminClient", "AsyncClient"]
