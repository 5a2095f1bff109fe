"""`python -m sglang_subgw.simulated --runtime-dir DIR`: an engine to attach to, without sglang.

Prints, when it is ready, the path of its contract and the name of its segment.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from pathlib import Path

from ..engine.attach.published import PublishedEngine
from .engine import SimulatedEngine
from .faults import Faults


def main() -> None:
    """Serve until SIGTERM or SIGINT; a simulated crash ends the process with exit code 70."""
    parser = argparse.ArgumentParser(prog="python -m sglang_subgw.simulated", description=main.__doc__)
    parser.add_argument("--runtime-dir", required=True, type=Path)
    parser.add_argument("--codec", choices=("pickle", "msgpack"), default="pickle")
    parser.add_argument("--ungrouped", action="store_true", help="one message per request, as SGLang to 0.5.22")
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--max-running", type=int, default=1024)
    parser.add_argument("--max-queued", type=int)
    parser.add_argument("--context-length", type=int, default=4096)
    parser.add_argument("--crash-after-steps", type=int)
    args = parser.parse_args()

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    engine = SimulatedEngine(
        args.runtime_dir,
        codec=args.codec,
        grouped=not args.ungrouped,
        step_seconds=args.step_seconds,
        max_running=args.max_running,
        max_queued=args.max_queued,
        faults=Faults(crash_after_steps=args.crash_after_steps),
        keep_received=False,
        model={"context_length": args.context_length},
    )
    with engine, PublishedEngine(engine) as published:
        # After the segment's own callback: gateways in other processes must find the reason.
        engine.on_death(lambda _: os._exit(70))
        path = args.runtime_dir / "contract.json"
        path.write_bytes(engine.contract.to_json())
        print(path, published.name, flush=True)
        stop.wait()


main()
