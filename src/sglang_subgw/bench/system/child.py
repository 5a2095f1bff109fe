"""The bench's own processes: one JSON object a line on stdin and stdout, everything they print in a log file."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

from ...errors import BenchError

_END_SECONDS: Final = 60.0
_LOG_LINES: Final = 15
_BENCH: Final = __package__.rpartition(".")[0]
_PACKAGE_PARENT: Final = Path(__file__).parents[3]


def importable() -> dict[str, str]:
    """Environment for another Python, which has this package's dependencies, but not the package."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(_PACKAGE_PARENT), os.environ.get("PYTHONPATH"))))}


class Child:
    """One process of the bench, seen from its parent; ends with the context."""

    def __init__(
        self,
        module: str,
        settings: Mapping[str, Any],
        *,
        log: Path,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = module
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [python, "-m", f"{_BENCH}.{module}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(environment or {})},
                # A terminal's Ctrl-C is the parent's to handle.
                process_group=0,
            )
        self.tell(**settings)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def tell(self, **message: Any) -> None:
        """Send one message; raises BenchError when the process has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None

    def hear(self) -> dict[str, Any]:
        """The next message; raises BenchError for an error that the process reports, or its end."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise BenchError(message["error"], hint=self._last_words())
        return message

    def ask(self, **message: Any) -> dict[str, Any]:
        """Send a message and wait for the answer."""
        self.tell(**message)
        return self.hear()

    def check(self) -> None:
        """Raise BenchError if it has ended."""
        if self._process.poll() is not None:
            raise self._ended()

    def close(self) -> None:
        """Let it end by itself, which it does when its stdin closes; kill it when it takes too long."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ended(self) -> BenchError:
        code = self._process.wait()
        return BenchError(f"The bench's process {self.name!r} ended with exit code {code}.", hint=self._last_words())

    def _last_words(self) -> str:
        lines = self._log.read_text("utf-8", "replace").strip().splitlines()[-_LOG_LINES:]
        return "\n".join(("Its log ends:", *lines)) if lines else ""


class Parent:
    """The parent, seen from one of its processes: what others print to stdout goes to the log."""

    def __init__(self) -> None:
        # Thousands of connections need as many descriptors.
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._in = sys.stdin

    def settings(self) -> dict[str, Any]:
        """The first message."""
        settings: dict[str, Any] = json.loads(self._in.readline())
        return settings

    def messages(self) -> Iterator[dict[str, Any]]:
        """The others, until the parent closes or ends."""
        for line in self._in:
            yield json.loads(line)

    def say(self, **message: Any) -> None:
        """Send one message."""
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()
