"""A whole gateway over a simulated engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from sglang_subgw.config import GatewayConfig, Mode
from sglang_subgw.gateway import ShardGateway
from sglang_subgw.simulated import SimulatedEngine

from .client import Address, client, client_per_shard, events


class Stack:
    """One engine, one gateway, and the requests a test sends to them."""

    def __init__(self, engine: SimulatedEngine, gateway: ShardGateway) -> None:
        self.engine = engine
        self.gateway = gateway

    @property
    def address(self) -> Address:
        return self.gateway.address

    @property
    def shard_count(self) -> int:
        return self.gateway.config.shards

    def client(self) -> httpx.Client:
        """A client on one new connection."""
        return client(self.address)

    def client_per_shard(self) -> Any:
        """Clients on every shard."""
        return client_per_shard(self.address, self.shard_count)

    def post(self, path: str, body: Any) -> httpx.Response:
        """One request on a connection of its own."""
        with self.client() as one:
            return one.post(path, json=body)

    def generate(self, text: Any = "abcdef", max_new_tokens: int | None = 8, **more: Any) -> Any:
        """/generate, which must succeed; keywords that aren't request fields are sampling parameters."""
        response = self.post("/generate", generate_body(text, max_new_tokens, **more))
        assert response.status_code == 200, response.text
        return response.json()

    def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a streamed answer."""
        with self.client() as one, one.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            return events(response)

    def wait_idle(self, timeout: float = 5.0) -> None:
        """Until nothing waits or runs in the engine."""
        assert self.engine.wait_idle(timeout), f"{self.engine.running()} requests still run"

    def wait_for(self, condition: Callable[[], bool], timeout: float = 5.0) -> bool:
        """Wait for something in the shards' counters, which nothing tells of."""
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def check(self) -> None:
        """What holds after every test: no worker broke a rule, and the router lives."""
        assert self.engine.violations == []
        assert self.engine.router_alive()


REQUEST_FIELDS = frozenset(
    {
        "input_ids",
        "stream",
        "rid",
        "return_logprob",
        "logprob_start_len",
        "top_logprobs_num",
        "token_ids_logprob",
        "return_text_in_logprobs",
        "session_params",
        "return_prompt_token_ids",
    }
)


def generate_body(text: Any, max_new_tokens: int | None, **more: Any) -> dict[str, Any]:
    """A body for /generate."""
    fields = {name: more.pop(name) for name in REQUEST_FIELDS & more.keys()}
    if "input_ids" not in fields:
        fields["text"] = text
    return {**fields, "sampling_params": {"max_new_tokens": max_new_tokens, **more}}


@contextmanager
def running_stack(
    runtime_dir: Path, mode: Mode, *, shards: int = 2, config: dict[str, Any] | None = None, **engine: Any
) -> Iterator[Stack]:
    """Engine up, gateway up; at the end gateway down, engine down."""
    settings = {"host": "127.0.0.1", "port": 0, "log_level": "warning", "mode": mode, "shards": shards}
    with ExitStack() as ends:
        simulated = ends.enter_context(SimulatedEngine(runtime_dir, **engine))
        gateway = ends.enter_context(ShardGateway(simulated, GatewayConfig(**(settings | (config or {})))))
        yield Stack(simulated, gateway)


def echoed(prompt: str, tokens: int) -> str:
    """What the default script answers to a prompt of ASCII without merged words: its bytes, over and over."""
    return "".join(prompt[i % len(prompt)] for i in range(tokens))
