"""The asyncio clients. They are written by hand; the blocking ones in `foqs.client.sync` are generated from them."""

from __future__ import annotations

from foqs.client.aio.admin import AsyncAdminClient
from foqs.client.aio.client import AsyncClient

__all__ = ["AsyncAdminClient", "AsyncClient"]
