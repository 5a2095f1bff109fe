"""The whole thing on a real engine: what a user does, in both modes that need no special Python."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from sglang_subgw.config import Mode
from support.real.servers import Connection, Server, free_port, running

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(400)]

SHARDS = 4


@pytest.fixture(scope="module", params=[Mode.SUBINTERP, Mode.PROCESS])
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param


@pytest.fixture(scope="module")
def server(mode: Mode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_port()
    command = ["-m", "sglang_subgw", "--shards", str(SHARDS), "--mode", mode, "--port", str(port)]
    with running(command, port, tmp_path_factory.mktemp(mode) / "log") as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Connection]:
    with Connection(server.port) as connection:
        yield connection


def until(condition: Callable[[], bool], seconds: float) -> float:
    """Wait for what another process does; returns how long it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "it did not happen in time"
        time.sleep(0.01)
    return time.monotonic() - start


def active(port: int) -> int:
    """Requests the shards wait for."""
    with Connection(port) as connection:
        return sum(shard["active"] for shard in connection.get("/server_info")[1]["sglang_subgw"]["shards"])


# What it is.


def test_it_says_what_it_serves_and_how(server: Server, mode: Mode) -> None:
    until(lambda: "Ctrl-C stops it" in server.log.read_text(), 10)
    text = server.log.read_text()
    assert "starting the scheduler" in text
    assert f"http://127.0.0.1:{server.port}" in text
    assert f"{mode}, {SHARDS} shards" in text
    assert "/v1/completions" in text


def test_server_info_shows_mode_and_shards(client: Connection, mode: Mode) -> None:
    gateway = client.get("/server_info")[1]["sglang_subgw"]
    assert gateway["mode"] == mode
    assert [shard["state"] for shard in gateway["shards"]] == ["ready"] * SHARDS


def test_the_process_tree_has_the_shards_where_the_mode_says(server: Server, mode: Mode) -> None:
    """Subinterpreters are no processes; children have no torch in them and stay small."""
    children = psutil.Process(server.process.pid).children()
    names = sorted(re.sub(r"\W.*", "", child.name()) for child in children)
    ours = [child for child in children if "sglang_subgw.modes.child" in child.cmdline()]
    print(names)
    assert len(ours) == (SHARDS if mode is Mode.PROCESS else 0)
    others = {" ".join(child.cmdline()).strip() for child in children if child not in ours}
    assert all("sglang::" in name or "resource_tracker" in name for name in others), others
    for child in ours:
        assert "torch" not in Path(f"/proc/{child.pid}/maps").read_text()
        private = child.memory_full_info().uss / 1e6
        print(f"shard process {child.pid}: {private:.1f} MB private")
        assert private < 60


def test_a_shard_starts_quickly_and_small(server: Server, mode: Mode) -> None:
    """Printed by the server; the times are judged by a benchmark, a shared machine is too noisy for a test."""
    line = re.search(r"ready in ([\d.]+)-([\d.]+) s each, (\d+) MB each", server.log.read_text())
    assert line is not None
    print(line[0])
    assert int(line[3]) < (45 if mode is Mode.SUBINTERP else 60)


# The official client.


def test_the_openai_client_sync(server: Server) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none") as client:
        model = client.models.list().data[0].id
        completion = client.completions.create(
            model=model, prompt="The capital of France is", max_tokens=8, temperature=0
        )
        assert completion.choices[0].text
        text = "".join(
            c.choices[0].text
            for c in client.completions.create(
                model=model, prompt="The capital of France is", max_tokens=8, temperature=0, stream=True
            )
        )
        assert text
        messages: Any = [{"role": "user", "content": "Hello"}]
        chat = client.chat.completions.create(model=model, messages=messages, max_tokens=8, temperature=0)
        assert chat.usage is not None
        assert chat.usage.completion_tokens > 0
        chunks = client.chat.completions.create(
            model=model, messages=messages, max_tokens=8, temperature=0, stream=True
        )
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert streamed == chat.choices[0].message.content
        with pytest.raises(openai.BadRequestError, match="temperature"):
            client.chat.completions.create(model=model, messages=messages, temperature=-1)
        with pytest.raises(openai.NotFoundError, match="no-such-model"):
            client.completions.create(model="no-such-model", prompt="x")
        with pytest.raises(openai.BadRequestError, match="context length"):
            client.completions.create(model=model, prompt="word " * 20_000)


def test_the_openai_client_async(server: Server) -> None:
    async def main() -> None:
        base = f"http://127.0.0.1:{server.port}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="none") as client:
            messages: Any = [{"role": "user", "content": "Hello"}]
            options: Any = {"model": "demo", "messages": messages, "max_tokens": 8, "temperature": 0}
            chat = await client.chat.completions.create(**options)
            stream = await client.chat.completions.create(**options, stream=True)
            streamed = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
            assert "".join(streamed) == chat.choices[0].message.content
            completion = await client.completions.create(model="demo", prompt="The", max_tokens=4)
            parts = [
                c async for c in await client.completions.create(model="demo", prompt="The", max_tokens=4, stream=True)
            ]
            assert completion.choices[0].text or parts
            with pytest.raises(openai.BadRequestError, match="max_tokens"):
                await client.completions.create(model="demo", prompt="The", max_tokens=-1)

    asyncio.run(main())


# Bad input.

_BAD: dict[str, tuple[str, bytes]] = {
    "malformed JSON": ("/generate", b'{"text": "x"'),
    "not an object": ("/v1/completions", b"[1, 2]"),
    "wrong type": ("/v1/completions", b'{"model": "demo", "prompt": "x", "max_tokens": "ten"}'),
    "wrong type in the parameters": ("/generate", b'{"text": "x", "sampling_params": {"temperature": "hot"}}'),
    "text that is a number": ("/generate", b'{"text": 5}'),
    "empty prompt": ("/v1/completions", b'{"model": "demo", "prompt": ""}'),
    "nothing to generate from": ("/generate", b"{}"),
    "prompt over the context length": ("/generate", json.dumps({"text": "word " * 50_000}).encode()),
    "negative max_tokens": ("/v1/completions", b'{"model": "demo", "prompt": "x", "max_tokens": -1}'),
    "unknown model": ("/v1/chat/completions", b'{"model": "nope", "messages": [{"role": "user", "content": "x"}]}'),
    "unknown field": ("/v1/completions", b'{"model": "demo", "prompt": "x", "max_toknes": 1}'),
    "unknown sampling parameter": ("/generate", b'{"text": "x", "sampling_params": {"heat": 1}}'),
    "temperature -1": ("/generate", b'{"text": "x", "sampling_params": {"temperature": -1}}'),
    "NaN": ("/generate", b'{"text": "x", "sampling_params": {"temperature": NaN}}'),
    "n=0": ("/v1/completions", b'{"model": "demo", "prompt": "x", "n": 0}'),
    "n=0 in the parameters": ("/generate", b'{"text": "x", "sampling_params": {"n": 0}}'),
    "a very large n": ("/generate", b'{"text": "x", "sampling_params": {"n": 1000000000}}'),
    "1 MB of nested brackets": ("/generate", b"[" * 2**20),
    "1 MB of nested brackets in a field": ("/generate", b'{"text": ' + b"[" * 2**20),
    "nested objects": ("/v1/chat/completions", b'{"a":' * 100_000),
    "invalid UTF-8": ("/generate", b'{"text": "\xff\xfe"}'),
    "ids outside the vocabulary": ("/generate", b'{"input_ids": [1, 2, 99999999]}'),
    "negative ids": ("/generate", b'{"input_ids": [-1]}'),
    "ids that are no integers": ("/generate", b'{"input_ids": [1.5, "x"]}'),
    "an integer too large for 64 bits": ("/generate", b'{"input_ids": [123456789012345678901234567890]}'),
    "tools, which are not there yet": (
        "/v1/chat/completions",
        b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]}',
    ),
}


@pytest.mark.parametrize("name", list(_BAD))
def test_bad_input_is_refused_and_the_next_request_answered(server: Server, name: str) -> None:
    path, body = _BAD[name]
    headers = {"Content-Type": "application/json"}
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
        answer = client.post(path, content=body, headers=headers)
        print(answer.status_code, answer.text[:300])
        assert 400 <= answer.status_code < 500
        error = answer.json().get("error", answer.json())
        assert len(error["message"]) > 10
        good = client.post("/generate", json={"text": "The", "sampling_params": {"max_new_tokens": 2}})
        assert good.status_code == 200


# Load.


def test_200_streams_end_with_the_right_text(server: Server) -> None:
    with Connection(server.port) as connection:
        prompts = ["The function", "Return the", "A list", "If it"]
        params = {"max_new_tokens": 24, "temperature": 0, "ignore_eos": True}
        lengths = [
            connection.post("/generate", {"text": prompt, "sampling_params": params})[1]["meta_info"]["prompt_tokens"]
            for prompt in prompts
        ]

    async def one(client: httpx.AsyncClient, number: int) -> int:
        body = {"text": prompts[number % 4], "sampling_params": params, "stream": True}
        async with client.stream("POST", "/generate", json=body) as response:
            assert response.status_code == 200
            shard = int(response.headers["x-sglang-subgw-shard"])
            before = ""
            last: dict[str, Any] = {}
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    last = json.loads(line.removeprefix("data: "))
                    assert last["text"].startswith(before)
                    before = last["text"]
                elif line:
                    assert line == "data: [DONE]"
                    done = True
        assert done
        # Which streams share a step decides the last bits of a CPU's sums: the text may differ, its form may not.
        assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 24}
        assert last["meta_info"]["prompt_tokens"] == lengths[number % 4]
        assert len(last["output_ids"]) == last["meta_info"]["completion_tokens"] == 24
        return shard

    async def main() -> list[int]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=120, limits=limits) as client:
            return await asyncio.gather(*(one(client, number) for number in range(200)))

    shards = asyncio.run(main())
    split = [shards.count(index) for index in range(SHARDS)]
    print(f"split over the shards: {split}")
    assert min(split) > 0
    until(lambda: active(server.port) == 0, 5)


def test_50_clients_that_leave_mid_stream_are_aborted_in_the_engine(server: Server) -> None:
    sockets = []
    body = json.dumps(
        {"text": "The function", "stream": True, "sampling_params": {"max_new_tokens": 1000, "ignore_eos": True}}
    ).encode()
    head = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    for _ in range(50):
        sock = socket.create_connection(("127.0.0.1", server.port))
        sock.sendall(head % len(body) + body)
        sockets.append(sock)
    for sock in sockets:
        received = b""
        while b"data: " not in received:
            more = sock.recv(65536)
            assert more, received
            received += more
    assert active(server.port) == 50
    for number, sock in enumerate(sockets):
        if number % 2:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    took = until(lambda: active(server.port) == 0, 5)
    print(f"all 50 gone from the engine {took:.2f} s after their clients left")
    with Connection(server.port) as connection:
        assert connection.post("/flush_cache", {})[0] == 200, "an engine that is busy refuses to flush"


# The end, last in this file: it stops the server.


def test_sigterm_during_100_streams_lets_them_finish_and_leaves_nothing(server: Server) -> None:
    family = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
    ends: list[str] = []
    started = threading.Barrier(101, timeout=60)

    def stream() -> None:
        params = {"max_new_tokens": 200, "ignore_eos": True}
        body = {"text": "The function", "stream": True, "sampling_params": params}
        with httpx.stream("POST", f"http://127.0.0.1:{server.port}/generate", json=body, timeout=120) as response:
            lines = (line for line in response.iter_lines() if line)
            next(lines)
            started.wait()
            rest = list(lines)
            last = json.loads(rest[-2].removeprefix("data: "))
            assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 200}
            ends.append(rest[-1])

    threads = [threading.Thread(target=stream) for _ in range(100)]
    for thread in threads:
        thread.start()
    started.wait()
    server.process.send_signal(signal.SIGTERM)

    def refused() -> bool:
        try:
            socket.create_connection(("127.0.0.1", server.port)).close()
        except ConnectionRefusedError:
            return True
        return False

    until(refused, 5)
    for thread in threads:
        thread.join()
    assert ends == ["data: [DONE]"] * 100
    assert server.process.wait(60) == 0
    # Python's resource tracker ends a moment after the process it serves, as a zombie where nobody looks after it.
    until(lambda: not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE], 5)
    pid = server.process.pid
    left = [path.name for path in Path("/dev/shm").iterdir() if str(pid) in path.name]
    left += [path.name for path in Path("/tmp").glob(f"subgw-{pid}-*")]
    assert left == []
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "resource_tracker" not in log


def test_a_wrong_option_is_named_before_anything_starts(tmp_path: Path) -> None:
    import sys

    for argv, said in (
        (["--no-such-option", "1"], "--no-such-option"),
        (["--shards", "2", "--tokenizer-worker-num", "3"], "differ"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "sglang_subgw", *argv],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
            check=False,
        )
        assert done.returncode == 2
        assert said in done.stderr.splitlines()[-1]
