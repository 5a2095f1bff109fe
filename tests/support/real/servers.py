"""Real servers as child processes: SGLang's own, and this gateway; and the plainest client for both."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

START_SECONDS = 240


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Server:
    """A running server process and its address."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log = log

    def wait_ready(self, path: str) -> None:
        """Until `path` answers 200; raises with the log's end when the process ends or time is up."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError), Connection(self.port) as connection:
                if connection.get(path)[0] == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(f"the server did not come up:\n{self.log.read_text()[-4000:]}")


class Connection:
    """One kept-alive connection, so that all its requests reach the same shard."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self.shard: int | None = None

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.close()

    def get(self, path: str) -> tuple[int, Any]:
        """Status and body of a GET."""
        return self._exchange("GET", path, None)

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and body of a POST: JSON, or for a stream the list of its events' data."""
        return self._exchange("POST", path, json.dumps(body).encode())

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, Any]:
        self._http.request(method, path, body, {"Content-Type": "application/json"})
        response = self._http.getresponse()
        data = response.read()
        shard = response.headers.get("x-sglang-subgw-shard")
        self.shard = None if shard is None else int(shard)
        if response.headers.get_content_type() == "text/event-stream":
            events = [line.removeprefix("data: ") for line in data.decode().split("\n\n") if line]
            return response.status, [event if event == "[DONE]" else json.loads(event) for event in events]
        try:
            return response.status, json.loads(data)
        except ValueError:
            return response.status, data.decode()


@contextlib.contextmanager
def running(command: list[str], port: int, log: Path, *, health: str = "/health") -> Iterator[Server]:
    """Start, wait until it is ready, and end with SIGTERM whatever happened."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"SGLANG_SUBGW_CPU": "1", "OMP_NUM_THREADS": "1", "SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "120"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *command], stdout=out, stderr=out, env=environment, start_new_session=True, cwd=log.parent
        )
    server = Server(process, port, log)
    try:
        server.wait_ready(health)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise AssertionError(f"the server did not end:\n{log.read_text()[-4000:]}") from None
