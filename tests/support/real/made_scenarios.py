"""Lives of gateways that make a real engine themselves: `python -m support.real.made_scenarios NAME`.

Prints one JSON object as the last line of its output.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

import sglang_subgw
from sglang_subgw.errors import EngineDied, EngineStartError, StartStopped

PROMPT = "The capital of France is"
GREEDY = {"temperature": 0, "max_new_tokens": 8}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGCHLD)


def made(**settings: Any) -> sglang_subgw.Gateway:
    return sglang_subgw.Gateway(
        settings.pop("arguments", None), shards=2, mode="process", port=0, log_level="warning", **settings
    )


def text(gateway: sglang_subgw.Gateway) -> str:
    body = {"text": PROMPT, "sampling_params": GREEDY}
    return str(httpx.post(f"{gateway.urls[0]}/generate", json=body, timeout=60).json()["text"])


def handlers() -> list[Any]:
    return [signal.getsignal(signum) for signum in SIGNALS]


def in_thread(call: Callable[[], Any]) -> Any:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call())
        except EngineStartError as exc:
            results.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


def here() -> dict[str, Any]:
    """In the main thread, in no loop; its scheduler is killed in the end."""
    before = handlers()
    with made() as gateway:
        engine: Any = gateway.engine
        out: dict[str, Any] = {"in_this_process": type(engine.engine).__mro__[1].__name__ == "Engine"}
        out["texts"] = [text(gateway), engine.engine.generate(PROMPT, GREEDY)["text"]]
        out["texts"] += [text(gateway), in_thread(lambda: engine.engine.generate(PROMPT, GREEDY)["text"])]
        out["handlers_kept"] = handlers() == before
        os.kill(engine.child_pids[0], signal.SIGKILL)
        gateway.wait(30)
        try:
            gateway.raise_failure()
        except EngineDied as exc:
            out["failure"] = str(exc)
    out["handlers_kept"] &= handlers() == before
    return out


def thread() -> dict[str, Any]:
    """Started in a thread that ends at once, with an engine route; then with a model that isn't there."""
    before = handlers()
    gateway = made(engine_routes=["/flush_cache"], admin_listen="0")
    in_thread(gateway.start)
    out: dict[str, Any] = {"in_this_process": hasattr(gateway.engine, "engine")}
    try:
        out["texts"] = [text(gateway) for _ in range(3)]
        out["flushed"] = httpx.post(f"{gateway.admin_url}/flush_cache", timeout=30).status_code == 200
        out["sglang_is_not_here"] = "sglang" not in sys.modules
    finally:
        in_thread(gateway.stop)
    out["no_model"] = str(in_thread(made(arguments=["--model-path", "/nowhere/at-all"]).start))
    out["handlers_kept"] = handlers() == before
    return out


def stopped() -> dict[str, Any]:
    """In the main thread, by another one while the scheduler loads."""
    gateway = made()
    began: list[float] = []
    stops: list[threading.Timer] = []

    class Stop(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "loading the model" in record.getMessage():
                began.append(time.monotonic())
                stops.append(threading.Timer(0.5, gateway.stop))
                stops[-1].start()

    logging.getLogger("sglang_subgw").addHandler(Stop())
    logging.getLogger("sglang_subgw").setLevel("INFO")
    try:
        gateway.start()
    except StartStopped as exc:
        out = {"failure": str(exc), "seconds": time.monotonic() - began[0]}
        for timer in stops:  # start() ends first, stop() may still be on its way back
            timer.join(30)
        return {**out, "stops": len(stops)}
    return {}


if __name__ == "__main__":
    result = {"here": here, "thread": thread, "stopped": stopped}[sys.argv[1]]()
    children = [
        Path(f"/proc/{pid}/cmdline").read_text()
        for path in Path("/proc/self/task").glob("*/children")
        for pid in path.read_text().split()
    ]
    result["children"] = [line for line in children if "resource_tracker" not in line]
    result["threads"] = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    result["segments"] = [name for name in os.listdir("/dev/shm") if str(os.getpid()) in name]
    print(json.dumps(result))
