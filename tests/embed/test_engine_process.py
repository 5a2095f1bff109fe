"""An engine in a process of its own, for gateways that are started in threads and event loops."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sglang_subgw
from sglang_subgw.config import Mode
from sglang_subgw.contract import process_start_time
from sglang_subgw.embed import engine_process as owner
from sglang_subgw.errors import ConfigError, EngineDied, EngineStartError, StartStopped, StorageError
from support.client import async_client, client, raw_request, read_until
from support.stack import echoed, generate_body


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "_MAIN", "support.simulated_owner_main")


def made(mode: Mode = Mode.PROCESS, **arguments: Any) -> sglang_subgw.Gateway:
    return sglang_subgw.Gateway(arguments, shards=1, mode=mode, port=0, log_level="warning")


def text(gateway: sglang_subgw.Gateway) -> str:
    with client(gateway.address) as one:
        return str(one.post("/generate", json=generate_body("<01>", 6)).json()["text"])


def in_thread(call: Callable[[], object]) -> object:
    results: list[object] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as exc:
            results.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(40)
    assert results, "it still runs"
    return results[0]


def until(condition: Callable[[], object], seconds: float = 15.0) -> None:
    """Wait for what other processes do."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def ended(pid: int) -> bool:
    return process_start_time(pid) is None


def failed(how: str) -> Any:
    return in_thread(made(how=how).start)


def owner_pid(gateway: sglang_subgw.Gateway) -> int:
    return int(gateway.engine.owner_pid)  # type: ignore[attr-defined]


def test_started_in_a_thread_it_serves_and_ends_with_its_engine(mode: Mode, tmp_path: Path):
    def run() -> tuple[str, int]:
        with made(mode, ended=str(tmp_path / "ended"), model_path="m") as gateway:
            return text(gateway), owner_pid(gateway)

    result = in_thread(run)
    assert isinstance(result, tuple), result
    assert result[0] == echoed("<01>", 6)
    assert ended(result[1])
    arguments = json.loads((tmp_path / "ended").read_text())
    assert (arguments["model_path"], arguments["host"]) == ("m", "127.0.0.1")
    assert arguments["port"] > 0


def test_the_thread_that_started_it_may_end_before_it():
    gateway = made()
    assert in_thread(gateway.start) is None
    assert text(gateway) == echoed("<01>", 6)
    pid = owner_pid(gateway)
    assert in_thread(gateway.stop) is None
    assert ended(pid)


def test_started_in_an_event_loop_it_serves_others_attach_to_it_and_its_phases_are_logged(
    caplog: pytest.LogCaptureFixture,
):
    async def run() -> None:
        async with made() as gateway:
            async with sglang_subgw.attach(gateway.engine_name) as attached:
                out: Any = await attached.async_generate("<01>", {"max_new_tokens": 6})
                assert out["text"] == echoed("<01>", 6)
            async with sglang_subgw.Gateway(owner_pid(gateway), shards=1, mode=Mode.PROCESS, port=0) as other:
                assert other.engine_name == gateway.engine_name
                async with async_client(other.address) as one:
                    assert (await one.post("/generate", json=generate_body("<01>", 6))).status_code == 200

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert "importing SGLang …" in caplog.text


def test_why_it_does_not_start_is_told_as_it_was_there():
    failure = failed("fail")
    assert isinstance(failure, EngineStartError)
    assert (failure.message, failure.hint) == ("there is no such model", "Give another.")
    assert isinstance(failed("full"), StorageError)


def test_a_fault_in_it_is_told(capfd: pytest.CaptureFixture[str]):
    failure = failed("bug")
    assert isinstance(failure, EngineStartError)
    assert "ZeroDivisionError('a bug')" in failure.message
    assert "Traceback" in capfd.readouterr().err


def test_one_that_ends_without_a_word_is_told_by_its_exit_status():
    failure = failed("exit")
    assert isinstance(failure, EngineStartError)
    assert failure.message == "The engine's process ended with exit status 7 at its start."


def test_arguments_that_can_not_be_handed_over_are_named():
    failure = in_thread(made(how="serve", custom_sigquit_handler=print).start)
    assert isinstance(failure, ConfigError)
    assert "custom_sigquit_handler=<built-in function print>" in failure.message


def test_engine_routes_are_looked_up_where_the_engine_is():
    gateway = sglang_subgw.Gateway({}, shards=1, mode=Mode.PROCESS, port=0, engine_routes=["/flush_cache"])
    failure = in_thread(gateway.start)
    # That process has a simulated engine, which has none; here there is not even one to look for them.
    assert isinstance(failure, ConfigError)
    assert "engine routes need the engine" in failure.message


def test_a_path_among_the_arguments_is_one(tmp_path: Path):
    def run() -> None:
        with made(model_path=Path("/a/model"), ended=tmp_path / "ended"):
            pass

    assert in_thread(run) is None
    assert json.loads((tmp_path / "ended").read_text())["model_path"] == "/a/model"


def test_a_stop_while_it_starts_ends_it_in_order(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    gateway = made(how="hang")

    def stop() -> None:
        until(lambda: "loading the model" in caplog.text)
        gateway.stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    failure = in_thread(gateway.start)
    stopper.join()
    assert isinstance(failure, StartStopped)
    assert failure.message == "The start was stopped."


def test_a_cancellation_while_it_starts_ends_it_in_order(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)

    async def run() -> None:
        start = asyncio.create_task(made(how="hang").async_start())
        while "loading the model" not in caplog.text:
            await asyncio.sleep(0.01)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start

    asyncio.run(run())


def test_one_that_is_killed_ends_its_gateway_with_that_reason(mode: Mode):
    def run() -> None:
        with made(mode) as gateway:
            stream = raw_request(gateway.address, "/generate", generate_body("abc", 4000, stream=True, ignore_eos=True))
            read_until(stream, b"\n\n")
            os.kill(owner_pid(gateway), signal.SIGKILL)
            rest = read_until(stream, b"[DONE]")
            assert b'"code":503' in rest
            stream.close()
            assert gateway.wait(10)
            gateway.raise_failure()

    failure = in_thread(run)
    assert isinstance(failure, EngineDied)
    assert "that owns the engine ended" in str(failure)


_HOST = """
import sys, threading
import sglang_subgw
from sglang_subgw.embed import engine_process as owner
owner._MAIN = "support.simulated_owner_main"
def run():
    gateway = sglang_subgw.Gateway({how}, shards=1, mode={mode!r}, port=0)
    threading.Thread(target=gateway.start).start()
    if {wait}:
        gateway.ready()
        print(gateway.engine.owner_pid, flush=True)
import logging
class Say(logging.Handler):
    def emit(self, record):
        print(record.getMessage(), flush=True)
logging.getLogger().addHandler(Say())
logging.getLogger().setLevel("INFO")
threading.Thread(target=run).start()
# A main thread that has ended lets no other import what a gateway needs.
threading.Event().wait()
"""


def _children(pid: int) -> list[int]:
    """Of all its threads."""
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]


@pytest.mark.parametrize("how", ["serve", "hang"])
def test_it_does_not_outlive_a_host_that_is_killed(mode: Mode, how: str):
    program = _HOST.format(how={"how": how}, mode=str(mode), wait=how == "serve")
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    ) as host:
        assert host.stdout is not None
        while (line := host.stdout.readline().strip()) and not (line.isdecimal() or line.startswith("loading")):
            pass
        assert line
        children = _children(host.pid)
        assert children
        host.kill()
        host.wait()
        until(lambda: all(map(ended, children)), 5)
    # What a killed one leaves, the next start removes.
    in_thread(made(how="fail").start)


def test_a_terminal_s_ctrl_c_is_left_to_the_host():
    def run() -> tuple[int, int]:
        with made() as gateway:
            return os.getpgid(owner_pid(gateway)), os.getpgid(0)

    theirs, ours = in_thread(run)  # type: ignore[misc]
    assert theirs != ours
