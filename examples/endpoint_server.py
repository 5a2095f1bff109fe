"""A server that is not HTTP: JSON lines over TCP, an endpoint per shard, found by a directory of registrations.

    python -m sglang_subgw --serve endpoint_server:serve --shards 4 --model-path DIR
    python endpoint_server.py            # what a planner sees: each engine, and the endpoints that lead to it

A client sends a line such as {"text": "Hello", "sampling_params": {"max_new_tokens": 16}, "stream": true} and gets a
line for each output. DISCOVERY names the directory; in a cluster this is etcd's or NATS's place.
"""

import asyncio
import collections
import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sglang_subgw import ShardEngine, ShardInfo

DISCOVERY = Path(os.environ.get("DISCOVERY", "/tmp/endpoints"))


async def serve(engine: ShardEngine, shard: ShardInfo) -> None:
    """Runs in every shard, from its start until the shard is to end."""
    clients: set[asyncio.StreamReader] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clients.add(reader)
        try:
            # ValueError: a line that has no end.
            with contextlib.suppress(ConnectionError, ValueError):
                while line := await reader.readline():
                    await answer(engine, line, writer)
        finally:
            clients.discard(reader)
            writer.close()

    async with asyncio.TaskGroup() as conversations:

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            conversations.create_task(converse(reader, writer))

        server = await asyncio.start_server(accept, "127.0.0.1")
        host, port = server.sockets[0].getsockname()
        with registered(shard, f"{host}:{port}"):
            await engine.until_draining()
        server.close()
        # What was asked is answered; no client can ask for more.
        for reader in clients:
            reader.feed_eof()


async def answer(engine: ShardEngine, line: bytes, writer: asyncio.StreamWriter) -> None:
    """Answer one line; what is wrong with it is told to its client, and is no matter of the others."""
    try:
        request = json.loads(line)
        stream = request.pop("stream", False)
        outs: Any = await engine.async_generate(request.pop("text"), stream=True, **request)
        # Closed, if the client leaves: that aborts the request in the engine.
        async with contextlib.aclosing(outs):
            async for out in outs:
                if stream or out["meta_info"]["finish_reason"]:
                    await send(writer, out)
    except ConnectionError:
        raise
    except Exception as exc:
        await send(writer, {"error": f"{type(exc).__name__}: {exc}"})


async def send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    """Send one line."""
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()


@contextlib.contextmanager
def registered(shard: ShardInfo, address: str) -> Iterator[None]:
    """In the directory while the context lasts; a shard that starts again takes its own place."""
    DISCOVERY.mkdir(parents=True, exist_ok=True)
    file = DISCOVERY / f"{shard.identity}.json"
    # Renamed into place, so that nobody reads half of it.
    written = file.with_suffix(".new")
    written.write_text(json.dumps({**dataclasses.asdict(shard), "address": address}))
    written.replace(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def engines() -> dict[str, list[dict[str, Any]]]:
    """The endpoints of each engine, by its id: a planner counts the engine once, however many shards it has."""
    found = collections.defaultdict(list)
    for file in sorted(DISCOVERY.glob("*.json")):
        # It may have withdrawn just now.
        with contextlib.suppress(FileNotFoundError):
            instance = json.loads(file.read_text())
            found[instance["engine_id"]].append(instance)
    return dict(found)


if __name__ == "__main__":
    for engine_id, instances in engines().items():
        addresses = ", ".join(instance["address"] for instance in instances)
        print(f"engine {engine_id} ({instances[0]['model']}): {len(instances)} endpoints at {addresses}")
