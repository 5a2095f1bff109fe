"""An engine in a process of its own, for a host that can't have it in its own: a thread's, a running event loop's.

SGLang sets up signals and event loops in the main thread of the process that it is launched in, and its import holds
the GIL for seconds. The process ends with this one, however that ends, and this one's gateway with it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from ..config import GatewayConfig
from ..engine.attach.attached import AttachedEngine
from ..engine.launch.arguments import EngineArguments
from ..engine.launch.cancellation import Cancellation
from ..errors import ConfigError, ContractError, EngineStartError, StorageError, SubgwError
from ..system.channel import Channel, ChannelClosedError

_MAIN: Final = "sglang_subgw.embed.engine_process_main"
_RAISED: Final[dict[str, type[SubgwError]]] = {
    kind.__name__: kind for kind in (ConfigError, ContractError, EngineStartError, StorageError)
}
_STOP_SECONDS: Final = 60.0
"""Longer than SGLang and `teardown` take at their longest."""


@contextmanager
def engine_of_its_own_process(
    arguments: EngineArguments,
    config: GatewayConfig,
    *,
    on_phase: Callable[[str], None],
    cancellation: Cancellation,
) -> Iterator[EngineProcess]:
    """An engine that is launched for this context, from any thread, and shut down at its end.

    The engine routes of `config` are served there. Raises what `launch` raises, also for a process that ends without a
    word.
    """
    owner = _Owner(arguments, config, on_phase)
    owner.start()
    try:
        with cancellation.by(owner.stop):
            segment = owner.ready.result()
        with EngineProcess.attach(segment) as engine:
            engine.admin_url = owner.admin_url
            yield engine
    finally:
        owner.join()


class EngineProcess(AttachedEngine):
    """An engine whose owner is a process of this one's."""

    admin_url = ""
    """Where that serves the engine routes, "" without."""


class _Owner(threading.Thread):
    """Lives as long as the process that it starts: the kernel ends a child with the thread that it comes from."""

    def __init__(self, arguments: EngineArguments, config: GatewayConfig, on_phase: Callable[[str], None]) -> None:
        super().__init__(name="subgw-engine-owner")
        self.admin_url = ""
        self.ready: concurrent.futures.Future[str] = concurrent.futures.Future()
        """The name of its segment."""
        self._order = json.dumps({"arguments": _plain(arguments), "config": config.to_json()}).encode()
        self._on_phase = on_phase
        self._channel, self._far_end = Channel.pair()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Start the process, and listen to it until it has ended."""
        try:
            with self._spawned() as process:
                self._process = process
                self._listen()
            self._fail(EngineStartError(f"The engine's process {_ending(process.returncode)} at its start."))
        except OSError as exc:
            self._fail(EngineStartError(f"A process for the engine can't be started: {exc}."))
        finally:
            self._channel.close()

    def stop(self) -> None:
        """Ask it to end; from any thread, also while it starts. Safe to call twice."""
        with contextlib.suppress(ChannelClosedError, OSError):
            self._channel.send("stop")

    def join(self, timeout: float | None = _STOP_SECONDS) -> None:
        """`stop`, and wait for the end; by force after `timeout` seconds."""
        self.stop()
        super().join(timeout)
        if self.is_alive() and self._process is not None:
            self._process.kill()
            super().join()

    @contextmanager
    def _spawned(self) -> Iterator[subprocess.Popen[bytes]]:
        fd = self._far_end.fileno()
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MAIN, str(fd), str(os.getpid())],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)},
                pass_fds=(fd,),
                stdin=subprocess.PIPE,
                # A terminal's Ctrl-C is for this process, which may want to drain first.
                process_group=0,
            )
        finally:
            self._far_end.close()
        with process:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(self._order)
                process.stdin.close()
            yield process

    def _listen(self) -> None:
        while True:
            try:
                message, _ = self._channel.receive()
            except ChannelClosedError:
                return
            match message:
                case {"kind": "phase", "text": text}:
                    self._on_phase(text)
                case {"kind": "ready", "segment": segment, "admin_url": url}:
                    self.admin_url = url
                    self.ready.set_result(segment)
                case {"kind": "failed", "error": name, "message": said, "hint": hint}:
                    self._fail(_RAISED.get(name, EngineStartError)(said, hint=hint))

    def _fail(self, error: SubgwError) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)


def _plain(arguments: EngineArguments) -> list[str] | dict[str, Any]:
    if not isinstance(arguments, Mapping):
        return [str(argument) for argument in arguments]
    return {name: _plain_value(name, value) for name, value in arguments.items()}


def _plain_value(name: str, value: Any) -> Any:
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    try:
        json.dumps(value)
    except (TypeError, ValueError) as exc:
        raise ConfigError(
            f"The engine's argument {name}={value!r} can't be handed to a process of its own: {exc}.",
            hint="Started in the main thread, and in no event loop, the engine is in this process and takes it.",
        ) from None
    return value


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"
