"""Mixed load on a gateway over the simulated engine, a program: `python -m support.mixed_load HOST PORT N`.

N clients send requests of every kind until a line arrives on stdin; each answer is checked. The output is a summary in
JSON: how many requests of each kind were answered, how many were told an error (a status, or an error event), and what
else went wrong.
"""

from __future__ import annotations

import asyncio
import collections
import json
import random
import sys
from typing import Any

import httpx

from support.client import async_client, parse_events
from support.stack import echoed, generate_body

_MODEL = "simulated-model"


class ToldError(Exception):
    """The server said that and why the request failed."""


class Load:
    """What the clients saw."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.answered: collections.Counter[str] = collections.Counter()
        self.told: collections.Counter[str] = collections.Counter()
        self.failures: list[str] = []
        self.stopping = False
        self._kinds = (
            self.plain,
            self.kept_alive,
            self.stream,
            self.long_stream,
            self.chat_stream,
            self.samples,
            self.batch,
            self.bad,
            self.leave,
            self.abort,
        )

    async def run(self, clients: int) -> None:
        """`clients` at once, until told to stop."""
        async with async_client(self.address) as fresh, asyncio.TaskGroup() as group:
            for seed in range(clients):
                group.create_task(self._client(fresh, random.Random(seed)))
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
            self.stopping = True

    def summary(self) -> dict[str, Any]:
        return {"answered": self.answered, "told": self.told, "failures": self.failures[:20]}

    async def _client(self, fresh: httpx.AsyncClient, rng: random.Random) -> None:
        async with httpx.AsyncClient(base_url=fresh.base_url, timeout=60, trust_env=False) as kept:
            while not self.stopping:
                kind = rng.choice(self._kinds)
                client = kept if kind == self.kept_alive else fresh
                try:
                    await kind(client, rng)
                    self.answered[kind.__name__] += 1
                except ToldError as exc:
                    self.told[f"{kind.__name__}: {exc}"] += 1
                except Exception as exc:
                    self.failures.append(f"{kind.__name__}: {type(exc).__name__}: {exc}")
                await asyncio.sleep(rng.uniform(0, 0.05))

    async def _post(self, client: httpx.AsyncClient, path: str, body: Any) -> Any:
        response = await client.post(path, json=body)
        if response.status_code != 200:
            raise ToldError(f"{response.status_code} {response.json()}")
        return response.json()

    async def _events(self, client: httpx.AsyncClient, path: str, body: Any) -> list[Any]:
        async with client.stream("POST", path, json={**body, "stream": True}) as response:
            text = (await response.aread()).decode()
            if response.status_code != 200:
                raise ToldError(f"{response.status_code} {text}")
        found = parse_events(text)
        if "error" in found[-1]:
            raise ToldError(str(found[-1]["error"]))
        return found

    async def plain(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        n = rng.randint(1, 30)
        _same((await self._post(client, "/generate", generate_body("<01>", n)))["text"], echoed("<01>", n))

    async def kept_alive(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        for _ in range(3):
            out = await self._post(client, "/generate", generate_body("<04>", 4))
            _same(out["text"], "<04>")

    async def stream(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        n = rng.randint(1, 60)
        _same((await self._events(client, "/generate", generate_body("<02>", n)))[-1]["text"], echoed("<02>", n))

    async def long_stream(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        _same((await self._events(client, "/generate", generate_body("<03>", 400)))[-1]["text"], echoed("<03>", 400))

    async def chat_stream(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        body = {"model": _MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 20}
        found = await self._events(client, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
        _same(found[-1]["usage"]["completion_tokens"], 20)
        _same([e["choices"][0]["finish_reason"] for e in found if e["choices"]][-1], "length")

    async def samples(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        out = await self._post(client, "/v1/completions", {"model": _MODEL, "prompt": "abc", "max_tokens": 5, "n": 2})
        _same([choice["text"] for choice in out["choices"]], ["abcab"] * 2)

    async def batch(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        outs = await self._post(client, "/generate", generate_body(["abc", "def", "ghi"], 6))
        _same([out["text"] for out in outs], ["abcabc", "defdef", "ghighi"])

    async def bad(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        response = await client.post("/generate", json=generate_body("abc", -1))
        _same(response.status_code, 400)

    async def leave(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        body = generate_body("gone", 4000, stream=True)
        async with client.stream("POST", "/generate", json=body) as response:
            if response.status_code != 200:
                raise ToldError(f"{response.status_code} {await response.aread()!r}")
            async for _ in response.aiter_bytes():
                return

    async def abort(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        rid = f"{rng.getrandbits(64):016x}"
        answer = asyncio.create_task(self._post(client, "/generate", generate_body("abort me", 400, rid=rid)))
        await asyncio.sleep(rng.uniform(0.05, 0.3))
        _same((await client.post("/abort_request", json={"rid": rid})).status_code, 200)
        out = await answer
        if out["meta_info"]["finish_reason"]["type"] not in ("abort", "length"):
            raise AssertionError(out["meta_info"])


def _same(found: object, expected: object) -> None:
    if found != expected:
        raise AssertionError(f"{found!r} is not {expected!r}")


def main() -> None:
    host, port, clients = sys.argv[1:]
    load = Load((host, int(port)))
    asyncio.run(load.run(int(clients)))
    print(json.dumps(load.summary()), flush=True)


if __name__ == "__main__":
    main()
