"""What every route shares: errors turned into the API's own form."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from ...errors import RequestError, RequestRejected
from .errors import ErrorBody
from .exchange import CLOSE, ClientGone, Exchange
from .sse import DONE, event

logger = logging.getLogger(__name__)

type Handler = Callable[[Exchange], Awaitable[None]]


class Endpoint:
    """What is behind a route: runs the handler, and answers for whatever it raises."""

    __slots__ = ("_body", "_event", "_handler")

    def __init__(self, handler: Handler, body: ErrorBody, stream_body: ErrorBody | None = None) -> None:
        self._handler = handler
        self._body = body
        self._event = stream_body or body

    async def __call__(self, exchange: Exchange) -> None:
        try:
            await self._handler(exchange)
        except ClientGone:
            logger.debug("client left: %s", exchange.path)
        except RequestError as error:
            await self._fail(exchange, error)
        except RecursionError:
            await self._fail(exchange, RequestRejected("The request is nested too deeply."))
        except Exception as error:
            logger.exception("request failed: %s", exchange.path)
            await self._fail(exchange, RequestError(f"Internal server error: {error}"))

    async def _fail(self, exchange: Exchange, error: RequestError) -> None:
        if exchange.ended:
            return
        if exchange.started:
            await exchange.end(event(self._event(error)) + DONE)
            return
        headers = [CLOSE] if error.status in (413, 415, 503) else []
        await exchange.json(self._body(error), error.status, headers)
