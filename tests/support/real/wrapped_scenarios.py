"""Lives of an sglang.Engine that a program made and wrapped: `python -m support.real.wrapped_scenarios NAME`.

Prints one JSON object as the last line of its output.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import zmq

import sglang_subgw
from sglang_subgw.engine.demo.model import ensure_demo_model
from sglang_subgw.errors import EngineDied

PROMPT = "The capital of France is"
GREEDY = {"temperature": 0, "max_new_tokens": 8}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGCHLD)


def make_engine() -> Any:
    """As its documentation says, but for the small model and the CPU."""
    import sglang

    return sglang.Engine(
        model_path=str(ensure_demo_model()),
        tokenizer_worker_num=2,
        device="cpu",
        attention_backend="torch_native",
        max_total_tokens=20000,
        sleep_on_idle=True,
    )


def made(engine: Any, mode: str = "process", **settings: Any) -> sglang_subgw.Gateway:
    return sglang_subgw.Gateway(engine, shards=2, mode=mode, port=0, log_level="warning", **settings)


def text(gateway: sglang_subgw.Gateway) -> str:
    body = {"text": PROMPT, "sampling_params": GREEDY}
    return str(httpx.post(f"{gateway.urls[0]}/generate", json=body, timeout=60).json()["text"])


def watchdog_runs(engine: Any) -> bool:
    thread = engine.tokenizer_manager._subprocess_watchdog._thread
    return thread is not None and thread.is_alive()


def handlers() -> list[Any]:
    return [signal.getsignal(signum) for signum in SIGNALS]


async def awaited(engine: Any) -> list[str]:
    """From an event loop that is none of the engine's."""
    whole = (await engine.async_generate(PROMPT, GREEDY))["text"]
    parts = [part["text"] async for part in await engine.async_generate(PROMPT, GREEDY, stream=True)]
    return [whole, parts[-1]]


class Stream(threading.Thread):
    """A long stream in a thread, and its last event."""

    def __init__(self, gateway: sglang_subgw.Gateway) -> None:
        super().__init__()
        self.url = gateway.urls[0]
        self.running = threading.Event()
        self.events: list[str] = []
        self.start()
        self.running.wait(60)

    def run(self) -> None:
        params = {"max_new_tokens": 3000, "ignore_eos": True, "temperature": 0}
        body = {"text": PROMPT, "stream": True, "sampling_params": params}
        with httpx.stream("POST", f"{self.url}/generate", json=body, timeout=60) as response:
            for line in response.iter_lines():
                if line:
                    self.events.append(line)
                    self.running.set()


def life() -> dict[str, Any]:
    """Wrapped in each mode, by two gateways at once, used by its maker meanwhile and afterwards, crashed, killed."""
    engine = make_engine()
    out: dict[str, Any] = {"expected": engine.generate(PROMPT, GREEDY)["text"], "watchdog": [watchdog_runs(engine)]}
    before = handlers()
    out["texts"], homes = [], set()
    for mode in ("subinterp", "process", "thread"):
        with made(engine, mode) as gateway:
            homes.add(gateway.engine.contract.wire.runtime_dir)
            out["texts"].append(text(gateway))
            out["texts"].append(engine.generate(PROMPT, GREEDY)["text"])
    out["homes"] = len(homes)
    with made(engine) as gateway, made(engine) as other:
        out["shared"] = gateway.engine is other.engine and gateway.engine.engine is engine  # type: ignore[attr-defined]
        out["watchdog"].append(watchdog_runs(engine))
        with zmq.Context() as context, context.socket(zmq.PUSH) as worker:
            worker.connect(engine.port_args.tokenizer_worker_ipc_name)
            worker.send(b"nothing that can be read")
        out["texts"] += [text(gateway), text(other), *asyncio.run(awaited(engine))]
        out["dropped"] = engine.tokenizer_router.receive_from_worker.dropped
    out["watchdog"].append(watchdog_runs(engine))
    out["texts"].append(engine.generate(PROMPT, GREEDY)["text"])
    out["handlers_kept"] = handlers() == before
    out["crash"] = _crash(engine)
    out["texts"].append(engine.generate(PROMPT, GREEDY)["text"])
    out["kill"] = _kill(engine)
    engine.shutdown()
    return out


def _crash(engine: Any) -> dict[str, Any]:
    """What a process of SGLang's sends when it crashes, to a program that left its signals to the gateway."""
    before = handlers()
    with made(engine, handle_signals=True) as gateway:
        stream = Stream(gateway)
        os.kill(os.getpid(), signal.SIGQUIT)
        out = _end(gateway, stream)
    return {**out, "handlers_kept": handlers() == before}


def _kill(engine: Any) -> dict[str, Any]:
    """What the kernel does to one that takes too much memory; nobody is there to send a signal."""
    with made(engine) as gateway:
        stream = Stream(gateway)
        scheduler = gateway.engine.child_pids[0]  # type: ignore[attr-defined]
        os.kill(scheduler, signal.SIGKILL)
        out = _end(gateway, stream)
    # SGLang's watchdog looks once a second, and would end this process.
    time.sleep(2.5)
    return {**out, "watchdog": watchdog_runs(engine)}


def _end(gateway: sglang_subgw.Gateway, stream: Stream) -> dict[str, Any]:
    stream.join(30)
    gateway.wait(30)
    try:
        gateway.raise_failure()
    except EngineDied as exc:
        return {"reason": str(exc), "last": stream.events[-2:], "alive": stream.is_alive()}
    return {}


def loop() -> dict[str, Any]:
    """Made within a running event loop, on which its maker goes on to use it."""

    async def run() -> dict[str, Any]:
        engine = make_engine()
        out: dict[str, Any] = {"texts": await awaited(engine)}
        async with made(engine) as gateway:
            async with httpx.AsyncClient(timeout=60) as client:
                body = {"text": PROMPT, "sampling_params": GREEDY}
                answer = await client.post(f"{gateway.urls[0]}/generate", json=body)
            out["texts"] += [answer.json()["text"], *await awaited(engine)]
            async with sglang_subgw.attach(gateway.engine_name) as attached:
                one: Any = await attached.async_generate(PROMPT, GREEDY)
                out["texts"].append(one["text"])
        out["texts"] += await awaited(engine)
        engine.shutdown()
        return out

    return asyncio.run(run())


if __name__ == "__main__":
    result = {"life": life, "loop": loop}[sys.argv[1]]()
    result["threads"] = [
        thread.name for thread in threading.enumerate() if thread.name.startswith(("subgw", "tokenization"))
    ]
    result["segments"] = [name for name in os.listdir("/dev/shm") if f"_{os.getpid()}_" in name]
    result["homes_left"] = [str(path) for path in Path(os.environ["TMPDIR"]).glob("subgw-*/*") if path.is_file()]
    print(json.dumps(result))
