"""The engine's arguments: SGLang parses its own, this package adds what a gateway and a plain CPU need."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ...errors import ConfigError

type EngineArguments = Sequence[str] | Mapping[str, Any]
"""A command line of `sglang serve`, or keyword arguments of ServerArgs."""

_WORKERS: Final = 2
"""Any number above 1 makes SGLang start its router; how many shards join it is not its concern."""
_DEMO_TOKENS: Final = 65536
_CPU_TOKENS: Final = 20000
_NOT_SERVED: Final = {
    "api_key": "requests would be answered without a key",
    "admin_api_key": "requests would be answered without a key",
    "ssl_certfile": "requests would be answered without TLS",
    "ssl_keyfile": "requests would be answered without TLS",
    "ssl_ca_certs": "requests would be answered without TLS",
    "enable_http2": "HTTP/1.1 alone is served",
    "grpc_mode": "HTTP alone is served",
    "smg_grpc_mode": "HTTP alone is served",
    "fastapi_root_path": "routes are served at / alone",
    "node_rank": "an engine on another node has no gateway",
}


def check_worker_count(arguments: EngineArguments, shards: int) -> None:
    """Raise ConfigError when SGLang's own tokenizer worker number is given and isn't the number of shards."""
    given = _option(arguments, "tokenizer_worker_num")
    if given is not None and str(given) != str(shards):
        raise ConfigError(
            f"--shards {shards} and --tokenizer-worker-num {given} differ.",
            hint="They mean the same here: give one of them.",
        )


def is_quiet(arguments: EngineArguments) -> bool:
    """Whether nothing but errors of SGLang's is to be shown, which is the default."""
    return (_option(arguments, "log_level") or "error").lower() in ("error", "critical")


def names_model(arguments: EngineArguments) -> bool:
    """Whether the arguments say which model to serve; a --config file is taken to."""
    return any(_option(arguments, name) is not None for name in ("model_path", "model", "config"))


def with_demo_model(arguments: EngineArguments, directory: Path) -> EngineArguments:
    """The same arguments with the demo model, under a name that reads well."""
    defaults = {"served_model_name": "demo", "max_total_tokens": _DEMO_TOKENS}
    added: dict[str, Any] = {"model_path": str(directory)}
    added |= {name: value for name, value in defaults.items() if _option(arguments, name) is None}
    return _extended(arguments, added)


def with_address(arguments: EngineArguments, host: str, port: int) -> EngineArguments:
    """The same arguments with the gateway's address, which SGLang shows as its own, where they say nothing of one."""
    added: dict[str, Any] = {
        name: value for name, value in (("host", host), ("port", port)) if _option(arguments, name) is None
    }
    return _extended(arguments, added)


def read_server_args(arguments: EngineArguments, *, on_cpu: bool) -> Any:
    """SGLang's ServerArgs for a gateway; raises ConfigError naming what SGLang does not know or we do not serve."""
    server_args = _from_keywords(arguments) if isinstance(arguments, Mapping) else _from_command_line(arguments)
    check_served(server_args)
    if _option(arguments, "log_level") is None:
        server_args.log_level = "error"
    server_args.tokenizer_worker_num = _WORKERS
    if on_cpu:
        server_args.device = "cpu"
        server_args.attention_backend = server_args.attention_backend or "torch_native"
        server_args.max_total_tokens = server_args.max_total_tokens or _CPU_TOKENS
        if _option(arguments, "lora_backend") is None:
            # The default is a kernel of Triton's.
            server_args.lora_backend = "torch_native"
        # An idle scheduler polls without a pause: right beside an accelerator, but here it takes the shards' core.
        server_args.sleep_on_idle = True
    return server_args


def check_served(server_args: Any) -> None:
    """Raise ConfigError for arguments whose meaning a gateway would not keep."""
    for name, consequence in _NOT_SERVED.items():
        if getattr(server_args, name, None):
            raise ConfigError(f"{_flag(name)} is not supported yet: {consequence}.")


def _from_command_line(argv: Sequence[str]) -> Any:
    from sglang.srt.server_args import prepare_server_args

    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return prepare_server_args(list(argv))
    except SystemExit as exc:
        if not exc.code:
            raise
        message = complaint.getvalue().rpartition("error: ")[2].strip()
        raise ConfigError(
            f"SGLang does not accept its arguments: {message}.",
            hint="python -m sglang.launch_server --help lists them.",
        ) from None
    except ValueError as exc:
        raise ConfigError(f"SGLang does not accept its arguments: {exc}") from exc


def _from_keywords(arguments: Mapping[str, Any]) -> Any:
    from sglang.srt.server_args import ServerArgs

    try:
        return ServerArgs(**arguments)
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"SGLang does not accept its arguments: {exc}") from exc


def _option(arguments: EngineArguments, name: str) -> Any:
    """The value given for an option, None when it is not given."""
    if isinstance(arguments, Mapping):
        return arguments.get(name)
    flag, value = _flag(name), None
    for i, argument in enumerate(arguments):
        if argument == flag:
            value = arguments[i + 1] if i + 1 < len(arguments) else ""
        elif argument.startswith(f"{flag}="):
            value = argument.partition("=")[2]
    return value


def _extended(arguments: EngineArguments, added: Mapping[str, Any]) -> EngineArguments:
    if isinstance(arguments, Mapping):
        return {**arguments, **added}
    return [*arguments, *(part for name, value in added.items() for part in (_flag(name), str(value)))]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
