"""`python -m sglang_subgw.embed.engine_process_main CHANNEL PID`: an engine's own process, told the rest on stdin."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import queue
import signal
import sys
import threading
import traceback
from contextlib import ExitStack
from typing import Any

from ..config import GatewayConfig
from ..engine.attach.published import PublishedEngine
from ..engine.launch.arguments import EngineArguments
from ..engine.launch.cancellation import Cancellation
from ..engine.launch.launch import launch
from ..engine.routes.address import bind_for
from ..engine.routes.start import start_admin
from ..errors import EngineStartError, SubgwError
from ..gateway.runtime import runtime_dir
from ..system.channel import Channel, ChannelClosedError
from ..system.tether import hold


def main(channel: Channel, arguments: EngineArguments, config: GatewayConfig) -> int:
    """Have the engine until the other end of the channel wants it to stop, or is gone; returns the exit status."""
    cancellation = Cancellation()
    ends: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        with contextlib.suppress(ChannelClosedError):
            channel.receive()
        cancellation.cancel()
        ends.put("")

    def tell(kind: str, **fields: Any) -> None:
        with contextlib.suppress(ChannelClosedError):
            channel.send(kind, **fields)

    threading.Thread(target=listen, name="subgw-owner-channel", daemon=True).start()
    try:
        with ExitStack() as stack:
            if (admin_socket := bind_for(config)) is not None:
                stack.callback(admin_socket.close)
            path = stack.enter_context(runtime_dir())
            engine = stack.enter_context(
                launch(
                    arguments,
                    runtime_dir=path,
                    on_phase=lambda text: tell("phase", text=text),
                    cancellation=cancellation,
                )
            )
            if (admin := start_admin(config, engine, admin_socket, path)) is not None:
                stack.callback(admin.close)
            published = stack.enter_context(PublishedEngine(engine))
            gc.freeze()
            tell("ready", segment=published.name, admin_url=admin.url if admin is not None else "")
            engine.on_death(ends.put)
            if reason := ends.get():
                logging.getLogger("sglang_subgw").error("%s.", reason)
                return 1
            published.draining()
            return 0
    except SubgwError as exc:
        tell("failed", error=type(exc).__name__, message=exc.message, hint=exc.hint)
    except Exception as exc:  # It is the caller's to see, wherever it comes from.
        traceback.print_exc()
        tell("failed", error=EngineStartError.__name__, message=f"The engine's process failed: {exc!r}.", hint="")
    return 1


if __name__ == "__main__":
    # A service manager's SIGTERM reaches every process of a service; the one that wants the engine decides when.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hold(int(sys.argv[2]))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s engine: %(message)s")
    order = json.load(sys.stdin)
    channel = Channel.from_fd(int(sys.argv[1]))
    sys.exit(main(channel, order["arguments"], GatewayConfig.from_json(order["config"])))
