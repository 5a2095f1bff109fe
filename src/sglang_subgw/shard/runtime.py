"""What a shard runs on: its event loop and its log."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable

from ..config import EventLoop
from .spec import ShardSpec


def loop_factory(choice: EventLoop) -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the loop; uvloop unless asked otherwise, or, with AUTO, where it can't be had."""
    if choice is EventLoop.ASYNCIO:
        return asyncio.SelectorEventLoop
    try:
        import uvloop
    except ImportError:
        if choice is EventLoop.UVLOOP:
            raise
        return asyncio.SelectorEventLoop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def configure_logging(spec: ShardSpec) -> None:
    """Log to stderr with the shard's number, unless somebody else has set logging up here."""
    # In a thread of the gateway's own interpreter the host application's logging is already there, and stays.
    root = logging.getLogger()
    if not spec.isolated or root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s shard {spec.index}: %(message)s"))
    root.addHandler(handler)
    root.setLevel(spec.config.log_level.upper())
