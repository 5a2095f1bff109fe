"""A request of OpenAI's API as checked fields."""

from __future__ import annotations

from typing import Any

from ...errors import RequestRejected
from ..core.body import read_object
from ..core.exchange import Exchange
from ..core.fields import FieldTable


async def read_values(exchange: Exchange, table: FieldTable, limit: int) -> dict[str, Any]:
    """Every field of the table; raises RequestRejected for what isn't JSON, and for the first wrong field."""
    kind = exchange.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestRejected("Unsupported Media Type: Only 'application/json' is allowed")
    return table.read(await read_object(exchange, limit))
