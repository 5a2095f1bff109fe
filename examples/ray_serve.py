"""Ray Serve with a gateway in its replica: the engine in a process of the replica's, shards beside it.

    pip install 'sglang-subgw[ray]'
    python ray_serve.py '{"model_path": "MODEL"}' 8000      # SGLang's arguments, and the port of Ray Serve's proxy

Requests that go through Ray Serve are answered by the replica itself, which is one more worker of the engine. Clients
that speak HTTP or OpenAI's API are better sent to the shards: no proxy is between them and the engine there.
"""

import contextlib
import json
import signal
import sys
from typing import Any

import ray
import sglang_subgw
from ray import serve
from starlette.requests import Request


@serve.deployment(ray_actor_options={"num_cpus": 1}, graceful_shutdown_timeout_s=30)
class Replica:
    """An engine, a gateway around it, and Ray Serve's way to both."""

    async def __init__(self, arguments: Any, shards: int = 2) -> None:
        self._ends = contextlib.AsyncExitStack()
        self._gateway = await self._ends.enter_async_context(
            sglang_subgw.Gateway(arguments, shards=shards, host=ray.util.get_node_ip_address(), port=0)
        )
        self._engine = await self._ends.enter_async_context(sglang_subgw.attach(self._gateway.engine_name))

    async def __call__(self, request: Request) -> Any:
        """One answer by way of Ray Serve's proxy."""
        question = await request.json()
        return await self._engine.async_generate(question["text"], question.get("sampling_params"))

    async def url(self) -> str:
        """Where the shards listen."""
        return self._gateway.urls[0]

    async def check_health(self) -> None:
        """Ray Serve puts another replica in the place of one whose gateway has failed."""
        self._gateway.raise_failure()

    async def __del__(self) -> None:
        await self._ends.aclose()


if __name__ == "__main__":
    ray.init(include_dashboard=False)
    serve.start(http_options={"port": int(sys.argv[2])})
    replica = serve.run(Replica.bind(json.loads(sys.argv[1])))
    print(f"shards at {replica.url.remote().result()}", flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    serve.shutdown()
    ray.shutdown()
