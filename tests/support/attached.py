"""Commands of this package in processes of their own, where neither sglang nor torch can be imported."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Final, Self

_WITHOUT_SGLANG: Final = """
import sys
sys.modules["sglang"] = sys.modules["torch"] = sys.modules["transformers"] = None
from sglang_subgw.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
_ENGINE_ONLY: Final = """
import sys
sys.modules["sglang"] = sys.modules["torch"] = sys.modules["transformers"] = None
import sglang_subgw.cli.serve as serve
from sglang_subgw.simulated import SimulatedEngine
serve.launch = lambda argv, runtime_dir, on_phase: SimulatedEngine(runtime_dir, step_seconds=0.01)
from sglang_subgw.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


class CommandProcess:
    """A context in which the command runs, after `prefix` if there is one; `banner` waits until it serves."""

    def __init__(
        self,
        *arguments: str,
        program: str = _WITHOUT_SGLANG,
        python: str = sys.executable,
        prefix: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = [*prefix, python, *(("-c", program) if program else ("-m", "sglang_subgw")), *arguments]
        # Unset: an engine's start takes four times as long without bytecode.
        self._environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        self._environment |= environment or {}
        self._lines: list[str] = []
        self._banner: list[str] = []
        self._banner_seen = threading.Event()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self._environment
        )
        self._readers = [threading.Thread(target=self._read_errors), threading.Thread(target=self._read_banner)]
        for reader in self._readers:
            reader.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._process.stdout.close()
        self._process.stderr.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens, by its banner."""
        found = re.search(r"http://([0-9.]+):(\d+)", self.banner)
        assert found, self.banner
        return found[1], int(found[2])

    @property
    def banner(self) -> str:
        assert self._banner_seen.wait(300), self.log
        assert self._banner, self.log
        return "".join(self._banner)

    @property
    def log(self) -> str:
        """What it wrote to stderr until now."""
        return "".join(self._lines)

    def send(self, signum: signal.Signals) -> None:
        self._process.send_signal(signum)

    def wait(self, timeout: float = 15.0) -> int:
        """Its exit status, once it has ended and all its output is here."""
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end:\n{self.log}") from None
        for reader in self._readers:
            reader.join()
        return status

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._lines.extend(self._process.stderr)

    def _read_banner(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._banner.append(line)
            if line.startswith("Ctrl-C"):
                self._banner_seen.set()
        self._banner_seen.set()


def attached(
    target: str | int,
    *options: str,
    mode: str,
    shards: int = 2,
    python: str = sys.executable,
    prefix: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> CommandProcess:
    """`attach`, on any port."""
    arguments = ("attach", str(target), "--mode", mode, "--shards", str(shards), "--port", "0", *options)
    return CommandProcess(*arguments, python=python, prefix=prefix, environment=environment)


def sglang_owner() -> CommandProcess:
    """A real engine, alone."""
    return CommandProcess("--engine-only", program="")


def simulated_owner(
    *options: str, prefix: tuple[str, ...] = (), environment: Mapping[str, str] | None = None
) -> CommandProcess:
    """`serve`, with or without --engine-only, around a simulated engine in the place of SGLang."""
    return CommandProcess(*options, program=_ENGINE_ONLY, prefix=prefix, environment=environment)
