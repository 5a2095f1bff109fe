"""The command line: this package's own options; every other one is SGLang's and passes through unchanged."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass

from ..config import Accept, EventLoop, Fallback, GatewayConfig, Mode
from ..engine_routes import ENVIRONMENT, FORM, split_routes
from ..errors import ConfigError

_EPILOG = """\
Every other option is SGLang's own and is passed on unchanged (python -m sglang.launch_server --help lists them).
Without --model-path a small built-in demo model is served on the CPU.
Other commands: attach, to serve another process's engine; doctor, to see what this machine can do;
bench, to measure.
"""
_ENGINE_ROUTES = ("engine_route", "admin_listen")
_LISTENING = ("host", "port", "accept")
_GATEWAY_ONLY = (
    "shards",
    "tokenizer_worker_num",
    "mode",
    "fallback",
    "app",
    "serve",
    *_LISTENING,
    "loop",
    "images",
)


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """What `serve` was asked to do."""

    config: GatewayConfig
    engine_argv: tuple[str, ...]
    """Arguments for SGLang; empty of --model-path for the demo model."""
    engine_only: bool = False


@dataclass(frozen=True, slots=True)
class AttachCommand:
    """What `attach` was asked to do."""

    config: GatewayConfig
    target: str
    """The pid of an engine's owner, or the name of its segment."""


class CommandParser(argparse.ArgumentParser):
    """Wrong options are ConfigErrors."""

    def error(self, message: str) -> None:  # type: ignore[override]
        raise ConfigError(message[:1].upper() + message[1:] + ".", hint=f"{self.prog} --help lists the options.")


def parse_serve(argv: Sequence[str]) -> ServeCommand:
    """Read the command line of `serve`; raises ConfigError on a wrong value."""
    parser = _parser(
        "python -m sglang_subgw",
        description="Serve an SGLang engine through shards, each with its own GIL.",
        epilog=_EPILOG,
    )
    parser.add_argument("--engine-only", action="store_true", help="start the engine alone, for others to attach to")
    parser.add_argument("--tokenizer-worker-num", type=int, metavar="N", help="SGLang's name for --shards")
    parser.add_argument("--engine-log-level", default="error", help="SGLang's own log level (default %(default)s)")
    _add_engine_routes(
        parser,
        route=f"a method of the engine to expose on the admin listener: {FORM}; repeatable, also by {ENVIRONMENT}",
        listen="unix:PATH or [HOST:]PORT of that (default: a unix socket of its own)",
    )
    options, rest = parser.parse_known_args(argv)
    if options.engine_only:
        _refuse(parser, options, _GATEWAY_ONLY, "--engine-only", hint="Give it to each attach instead.")
    if options.tokenizer_worker_num is not None:
        if options.shards is not None and options.shards != options.tokenizer_worker_num:
            raise ConfigError(
                f"--shards {options.shards} and --tokenizer-worker-num {options.tokenizer_worker_num} differ.",
                hint="They mean the same here: give one of them.",
            )
        options.shards = options.tokenizer_worker_num
    engine_argv = [*rest, "--log-level", options.engine_log_level]
    if not options.engine_only:
        # The engine's own idea of its address shows in /server_info, so it gets the gateway's.
        engine_argv += ["--port", str(options.port)]
        if not options.host.startswith("unix:"):
            engine_argv += ["--host", options.host]
    routes = (*options.engine_route, *split_routes(os.environ.get(ENVIRONMENT, "")))
    return ServeCommand(_config(parser, options, routes), tuple(engine_argv), options.engine_only)


def parse_attach(argv: Sequence[str]) -> AttachCommand:
    """Read the command line of `attach`; raises ConfigError on a wrong value."""
    parser = _parser(
        "python -m sglang_subgw attach",
        description="Serve an engine that another process owns; this one needs no sglang.",
    )
    parser.add_argument("target", metavar="PID|NAME", help="the engine's process, or the name of its segment")
    _add_engine_routes(parser, route=argparse.SUPPRESS, listen=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    elsewhere = "The engine is in another process: give it to serve or --engine-only there."
    _refuse(parser, options, _ENGINE_ROUTES, "attach", hint=elsewhere)
    if os.environ.get(ENVIRONMENT):
        raise ConfigError(f"{ENVIRONMENT} says nothing to attach.", hint=elsewhere)
    return AttachCommand(_config(parser, options), options.target)


def _config(
    parser: argparse.ArgumentParser, options: argparse.Namespace, engine_routes: tuple[str, ...] = ()
) -> GatewayConfig:
    if options.serve:
        _refuse(parser, options, _LISTENING, "--serve", hint="The coroutine function opens what it serves by itself.")
    return GatewayConfig(
        shards=GatewayConfig().shards if options.shards is None else options.shards,
        mode=options.mode,
        fallback=options.fallback,
        app=options.app,
        serve=options.serve,
        host=options.host,
        port=options.port,
        accept=options.accept,
        loop=options.loop,
        images=options.images,
        log_level=options.log_level,
        start_timeout_seconds=options.start_timeout,
        drain_timeout_seconds=options.drain_timeout,
        engine_routes=engine_routes,
        admin_listen=options.admin_listen,
    )


def _add_engine_routes(parser: argparse.ArgumentParser, *, route: str, listen: str) -> None:
    parser.add_argument("--engine-route", action="append", default=[], metavar="ROUTE", help=route)
    parser.add_argument("--admin-listen", default=GatewayConfig().admin_listen, metavar="ADDRESS", help=listen)


def _refuse(
    parser: argparse.ArgumentParser, options: argparse.Namespace, names: Sequence[str], beside: str, *, hint: str
) -> None:
    for name in names:
        if getattr(options, name) != parser.get_default(name):
            raise ConfigError(f"--{name.replace('_', '-')} says nothing to {beside}.", hint=hint)


def _parser(prog: str, *, description: str, epilog: str = "") -> argparse.ArgumentParser:
    """A parser with the options that every gateway has."""
    default = GatewayConfig()
    parser = CommandParser(
        prog=prog,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    modes, loops = [mode.value for mode in Mode], [loop.value for loop in EventLoop]
    accepts = [accept.value for accept in Accept]
    fallbacks = [fallback.value for fallback in Fallback]
    levels = ["debug", "info", "warning", "error"]
    add("--shards", type=int, metavar="N", help=f"number of shards (default {default.shards})")
    add("--mode", default=default.mode.value, choices=modes, help="where shards run (default %(default)s)")
    add("--fallback", default=default.fallback.value, choices=fallbacks, help="what may replace a mode that can't run")
    add("--app", default=default.app, metavar="MODULE:ATTR", help="an ASGI application, or a factory of one")
    add("--serve", default=default.serve, metavar="MODULE:ATTR", help="async def serve(engine, shard), for no HTTP")
    add("--host", default=default.host, help="name, address, or unix:PATH to listen on (default %(default)s)")
    add("--port", type=int, default=default.port, help="port to listen on, 0 for any (default %(default)s)")
    add("--accept", default=default.accept.value, choices=accepts, help="who accepts connections (default %(default)s)")
    add("--loop", default=default.loop.value, choices=loops, help="event loop of a shard (default %(default)s)")
    add("--images", default=default.images, metavar="LIST", help="extension images: auto, off, +name, -name")
    add("--start-timeout", type=float, default=default.start_timeout_seconds, metavar="S", help="for a shard's start")
    add("--drain-timeout", type=float, default=default.drain_timeout_seconds, metavar="S", help="for a stop's drain")
    add("--log-level", default=default.log_level, choices=levels, help="of the gateway (default %(default)s)")
    return parser
