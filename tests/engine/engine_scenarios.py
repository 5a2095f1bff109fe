"""Lives of a real engine, each in a process of its own: `python engine_scenarios.py NAME DIR [ARGUMENT …]`.

Prints one JSON object as the last line of its output.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import zmq

from sglang_subgw.contract import EngineContract
from sglang_subgw.engine.launch import RunningEngine, launch
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
    scenarios = {"serve": serve, "router": router, "fail": fail, "interrupt": interrupt}
    result = scenarios[name](Path(directory), rest)
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    result["children"] = [
        line for pid in children if "resource_tracker" not in (line := Path(f"/proc/{pid}/cmdline").read_text())
    ]
    result["threads"] = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    result["files"] = [str(path) for path in Path(directory).rglob("*")]
    # SGLang names its segments by pid or by instance; those of other engines on the machine come and go.
    opened = {str(os.getpid())} | {word for word in result.pop("segments", ()) if word}
    result["shm"] = [entry for entry in os.listdir("/dev/shm") if any(word in entry for word in opened)]
    print(json.dumps(result))
