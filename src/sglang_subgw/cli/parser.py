"""The command line: this package's own options; every other one is SGLang's and passes through unchanged."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from ..config import EventLoop, Fallback, GatewayConfig, Mode
from ..errors import ConfigError

_EPILOG = """\
Every other option is SGLang's own and is passed on unchanged (python -m sglang.launch_server --help lists them).
Without --model-path a small built-in demo model is served on the CPU.
"""


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """What `serve` was asked to do."""

    config: GatewayConfig
    engine_argv: tuple[str, ...]
    """Arguments for SGLang; empty of --model-path for the demo model."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise ConfigError(message[:1].upper() + message[1:] + ".", hint=f"{self.prog} --help lists the options.")


def parse_serve(argv: Sequence[str]) -> ServeCommand:
    """Read the command line of `serve`; raises ConfigError on a wrong value."""
    parser = _parser()
    options, rest = parser.parse_known_args(argv)
    shards = options.shards
    if options.tokenizer_worker_num is not None:
        if shards is not None and shards != options.tokenizer_worker_num:
            raise ConfigError(
                f"--shards {shards} and --tokenizer-worker-num {options.tokenizer_worker_num} differ.",
                hint="They mean the same here: give one of them.",
            )
        shards = options.tokenizer_worker_num
    config = GatewayConfig(
        shards=GatewayConfig().shards if shards is None else shards,
        mode=options.mode,
        fallback=options.fallback,
        app=options.app,
        host=options.host,
        port=options.port,
        loop=options.loop,
        images=options.images,
        log_level=options.log_level,
        start_timeout_seconds=options.start_timeout,
        drain_timeout_seconds=options.drain_timeout,
    )
    # The engine's own idea of its address shows in /server_info, so it gets the gateway's.
    engine_argv = [*rest, "--log-level", options.engine_log_level, "--port", str(options.port)]
    if not options.host.startswith("unix:"):
        engine_argv += ["--host", options.host]
    return ServeCommand(config, tuple(engine_argv))


def _parser() -> argparse.ArgumentParser:
    default = GatewayConfig()
    parser = _Parser(
        prog="python -m sglang_subgw",
        description="Serve an SGLang engine through shards, each with its own GIL.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    modes, loops = [mode.value for mode in Mode], [loop.value for loop in EventLoop]
    fallbacks = [fallback.value for fallback in Fallback]
    levels = ["debug", "info", "warning", "error"]
    add("--shards", type=int, metavar="N", help=f"number of shards (default {default.shards})")
    add("--tokenizer-worker-num", type=int, metavar="N", help="SGLang's name for --shards")
    add("--mode", default=default.mode.value, choices=modes, help="where shards run (default %(default)s)")
    add("--fallback", default=default.fallback.value, choices=fallbacks, help="what may replace a mode that can't run")
    add("--app", default=default.app, metavar="MODULE:ATTR", help="an ASGI application, or a factory of one")
    add("--host", default=default.host, help="name, address, or unix:PATH to listen on (default %(default)s)")
    add("--port", type=int, default=default.port, help="port to listen on, 0 for any (default %(default)s)")
    add("--loop", default=default.loop.value, choices=loops, help="event loop of a shard (default %(default)s)")
    add("--images", default=default.images, metavar="LIST", help="extension images: auto, off, +name, -name")
    add("--start-timeout", type=float, default=default.start_timeout_seconds, metavar="S", help="for a shard's start")
    add("--drain-timeout", type=float, default=default.drain_timeout_seconds, metavar="S", help="for a stop's drain")
    add("--log-level", default=default.log_level, choices=levels, help="of the gateway (default %(default)s)")
    add("--engine-log-level", default="error", help="SGLang's own log level (default %(default)s)")
    return parser
