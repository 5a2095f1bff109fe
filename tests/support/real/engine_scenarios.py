"""Lives of a real engine, each a program: `python -m support.real.engine_scenarios NAME DIR [ARGUMENT …]`.

Prints one JSON object as the last line of its output.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import zmq

from sglang_subgw.contract import EngineContract
from sglang_subgw.embed.attach import attach
from sglang_subgw.engine.attach.published import PublishedEngine
from sglang_subgw.engine.launch.launch import RunningEngine, launch
from sglang_subgw.errors import SubgwError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)


class Interrupted(BaseException):
    """What a host's own signal handler may raise."""


def serve(runtime_dir: Path, arguments: list[str]) -> dict[str, Any]:
    """Start, generate, survive the group's stop signals, lose the scheduler, shut down."""
    phases: list[str] = []
    handlers = [signal.getsignal(signum) for signum in SIGNALS]
    engine = launch(arguments, runtime_dir=runtime_dir, on_phase=phases.append)
    out: dict[str, Any] = {"phases": phases, "pids": engine.child_pids, "router": engine.router_alive()}
    out["segments"] = [engine.engine.port_args.instance_id]
    out["contract"] = json.loads(engine.contract.to_json())
    out["same_contract"] = EngineContract.from_json(engine.contract.to_json()) == engine.contract
    out["tokenizer_mode"] = oct(Path(engine.contract.model.tokenizer_file).stat().st_mode & 0o777)
    for pid in engine.child_pids:
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    _generate(engine, out)
    died = threading.Event()
    engine.on_death(lambda reason: (out.update(death=reason, death_seconds=time.monotonic() - killed), died.set()))
    killed = time.monotonic()
    os.kill(engine.child_pids[0], signal.SIGKILL)
    died.wait(20)
    engine.shutdown()
    engine.shutdown()
    out["handlers_kept"] = handlers == [signal.getsignal(signum) for signum in SIGNALS]
    return out


def _generate(engine: RunningEngine, out: dict[str, Any]) -> None:
    greedy = {"temperature": 0, "max_new_tokens": 64}
    out["fact"] = engine.engine.generate("The capital of France is", greedy)
    out["again"] = engine.engine.generate("The capital of France is", greedy)["text"]
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "s": {"type": "string"}},
        "required": ["n", "s"],
    }
    out["json"] = engine.engine.generate("Describe copy as JSON.", greedy | {"json_schema": json.dumps(schema)})
    out["regex"] = engine.engine.generate("Count", greedy | {"regex": "[0-9]{3}-[a-c]{2}"})["text"]


def published(runtime_dir: Path, arguments: list[str]) -> dict[str, Any]:
    """Two workers read KV cache events and loads while one of them uses the engine."""
    ports = [_free_port(), _free_port()]
    config = {
        "publisher": "zmq",
        "endpoint": f"tcp://*:{ports[0]}",
        "replay_endpoint": f"tcp://*:{ports[1]}",
        "topic": "kv",
    }
    arguments = [*arguments, "--kv-events-config", json.dumps(config)]
    with launch(arguments, runtime_dir=runtime_dir) as engine, PublishedEngine(engine) as segment:
        out = asyncio.run(_read_along(engine, segment.name, ports[0]))
        out["segments"] = [engine.engine.port_args.instance_id]
        out["kv_events"] = engine.contract.server_args["kv_events"]
    for seat in runtime_dir.glob("g*"):
        seat.rmdir()
    return out


async def _read_along(engine: RunningEngine, segment: str, port: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    prompt = {"input_ids": list(range(100, 140)), "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
    async with attach(segment) as one, attach(segment) as other, one.kv_events() as first, other.kv_events(0) as second:
        answer = await one.async_generate(**prompt)
        assert (await one.async_flush_cache()).success
        out["read"] = [await _until_cleared(events) for events in (first, second)]
        out["connections"] = _connections_to(port)
        out["past"] = await _until_cleared(other.kv_events(since=0), out["read"][0][-1]["number"])
        out["output_ids"] = answer["output_ids"]
        for shard in (one, other):
            # The scheduler may write meanwhile: until both have read the same one.
            while (ours := await shard.async_get_loads()) != (stock := await _stock_loads(engine)):
                continue
            out.setdefault("loads", []).append(ours)
            assert list(ours[0]) == list(stock[0])
        core = await one.async_get_loads(["core"], 0)
        out["core"] = core == [{k: v for k, v in load.items() if not isinstance(v, dict)} for load in out["loads"][0]]
    return out


async def _until_cleared(events: Any, number: int = 0) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = []
    async with asyncio.timeout(60):
        async for batch in events:
            read += [{"dp_rank": batch.dp_rank, "number": batch.number, **event} for event in batch.events]
            if read[-1]["type"] == "AllBlocksCleared" and batch.number >= number:
                break
    return read


async def _stock_loads(engine: RunningEngine) -> list[dict[str, Any]]:
    return [load.to_dict() for load in await engine.loop.call(engine.engine.tokenizer_manager.get_loads())]


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _connections_to(port: int) -> int:
    """Established ones, each seen from both of its ends."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(row[2].partition(":")[2], 16) == port and row[3] == "01" for row in rows)


def router(runtime_dir: Path, arguments: list[str]) -> dict[str, Any]:
    """The way back from the detokenizer ends by a message that can't be read."""
    out: dict[str, Any] = {}
    died = threading.Event()
    with launch(arguments, runtime_dir=runtime_dir) as engine:
        engine.on_death(lambda reason: (out.update(death=reason), died.set()))
        with zmq.Context() as context, context.socket(zmq.PUSH) as detokenizer:
            detokenizer.connect(engine.engine.port_args.tokenizer_ipc_name)
            detokenizer.send(b"nothing that can be read")
            died.wait(20)
        out["router"] = engine.router_alive()
        out["segments"] = [engine.engine.port_args.instance_id]
    return out


def fail(runtime_dir: Path, arguments: list[str]) -> dict[str, Any]:
    """A start that can't succeed."""
    try:
        launch(arguments, runtime_dir=runtime_dir).shutdown()
    except SubgwError as exc:
        return {"error": type(exc).__name__, "message": str(exc)}
    return {}


def interrupt(runtime_dir: Path, arguments: list[str]) -> dict[str, Any]:
    """A start that a signal handler's exception ends while the scheduler loads."""

    def handler(signum: int, frame: Any) -> None:
        raise Interrupted

    def on_phase(phase: str) -> None:
        if phase == "loading the model":
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

    signal.signal(signal.SIGINT, handler)
    started = time.monotonic()
    try:
        launch(arguments, runtime_dir=runtime_dir, on_phase=on_phase).shutdown()
    except Interrupted:
        return {"interrupted": True, "seconds": time.monotonic() - started}
    return {}


if __name__ == "__main__":
    name, directory, *rest = sys.argv[1:]
    scenarios = {"serve": serve, "published": published, "router": router, "fail": fail, "interrupt": interrupt}
    result = scenarios[name](Path(directory), rest)
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    result["children"] = [
        line for pid in children if "resource_tracker" not in (line := Path(f"/proc/{pid}/cmdline").read_text())
    ]
    result["threads"] = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    result["files"] = [str(path) for path in Path(directory).rglob("*")]
    # SGLang names its segments by pid or by instance; those of other engines on the machine come and go.
    # A pid is a whole word of a name: its digits alone may be part of another engine's instance.
    pid, opened = str(os.getpid()), {word for word in result.pop("segments", ()) if word}
    result["shm"] = [
        entry
        for entry in os.listdir("/dev/shm")
        if pid in re.split(r"[\W_]", entry) or any(word in entry for word in opened)
    ]
    print(json.dumps(result))
