"""A program that has an Engine for itself opens it to HTTP clients, in shards, and goes on using it.

    python wrapped_engine.py '{"model_path": "MODEL"}' 8000      # any arguments of sglang.Engine, and a port

The Engine stays the program's own. It needs tokenizer_worker_num=2, or more, for shards to join it.
"""

import asyncio
import json
import sys
from typing import Any

import sglang

import sglang_subgw


async def main(arguments: dict[str, Any], port: int) -> None:
    """Serve until Ctrl-C, SIGTERM or the Engine's end."""
    engine = sglang.Engine(**arguments, tokenizer_worker_num=2)
    try:
        async with sglang_subgw.Gateway(engine, shards=2, port=port, handle_signals=True) as gateway:
            print(f"serving at {gateway.urls[0]}", flush=True)
            out = await engine.async_generate("The capital of France is", {"temperature": 0, "max_new_tokens": 8})
            print(f"its own answer:{out['text']}", flush=True)
            await gateway.async_wait()
            gateway.raise_failure()
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1]), int(sys.argv[2])))
