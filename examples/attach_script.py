"""A batch job on an engine that serves others meanwhile: plain asyncio, no server, no SGLang in this process.

    python -m sglang_subgw --engine-only --model-path DIR     # or any server of sglang_subgw; it prints its pid
    python attach_script.py PID < prompts.txt > answers.txt

Each line in is a prompt, each line out its answer as a JSON string, in the same order.
"""

import asyncio
import json
import sys
from typing import Any

import sglang_subgw


async def main(owner: str, prompts: list[str]) -> None:
    """Ask all at once: the engine batches what runs together."""
    async with sglang_subgw.attach(owner) as engine, asyncio.TaskGroup() as group:
        asked = [group.create_task(engine.async_generate(prompt, {"max_new_tokens": 16})) for prompt in prompts]
        for answer in asked:
            out: Any = await answer
            print(json.dumps(out["text"]), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.stdin.read().splitlines()))
