"""Gateways without sglang on a real engine of another process."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from sglang_subgw.config import Mode
from sglang_subgw.contract.segment import NAME_PREFIX
from support.attached import CommandProcess, attached, sglang_owner
from support.client import raw_request, read_until
from support.stack import generate_body

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(400)]

MODES = (Mode.SUBINTERP, Mode.PROCESS)


@pytest.fixture(scope="module")
def owner() -> Iterator[CommandProcess]:
    with sglang_owner() as owner:
        assert f"attach {owner.pid}" in owner.banner
        yield owner
    assert list(Path("/dev/shm").glob(f"{NAME_PREFIX}{owner.pid}_*")) == []


def ask(gateway: CommandProcess, path: str, body: Any = None) -> Any:
    url = "http://{}:{}".format(*gateway.address) + path
    response = httpx.get(url, timeout=60) if body is None else httpx.post(url, json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


def until(condition: Callable[[], bool], seconds: float = 10.0) -> float:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "it did not happen in time"
        time.sleep(0.02)
    return time.monotonic() - start


def idle(gateway: CommandProcess) -> bool:
    """Whether the scheduler holds no request, of any gateway: only then it flushes its cache."""
    return httpx.post("http://{}:{}/flush_cache".format(*gateway.address), timeout=60).status_code == 200


@pytest.mark.parametrize("mode", MODES)
def test_it_answers_without_torch_leaves_and_comes_back(owner: CommandProcess, mode: Mode):
    texts = []
    for _ in range(2):
        with attached(owner.pid, mode=mode) as gateway:
            answer = ask(gateway, "/generate", generate_body("The function", 16, temperature=0.0, ignore_eos=True))
            texts.append(answer["text"])
            for process in [psutil.Process(gateway.pid), *psutil.Process(gateway.pid).children(recursive=True)]:
                assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()
            gateway.send(signal.SIGTERM)
            assert gateway.wait() == 0, gateway.log
    assert texts[0] == texts[1] != ""


def test_what_a_killed_gateway_left_running_is_aborted(owner: CommandProcess):
    with attached(owner.pid, mode=Mode.PROCESS) as victim, attached(owner.pid, mode=Mode.SUBINTERP) as other:
        stream = raw_request(victim.address, "/generate", generate_body("The", 4000, stream=True, ignore_eos=True))
        read_until(stream, b"\n\n")
        assert not idle(other)
        victim.send(signal.SIGKILL)
        victim.wait()
        print(f"aborted {until(lambda: idle(other), 5):.2f} s after the gateway was killed")
        stream.close()
        assert ask(other, "/generate", generate_body("The function", 4, ignore_eos=True))["text"]


def test_a_killed_scheduler_ends_every_gateway_and_the_engine_with_the_reason(owner: CommandProcess):
    """The last one: the engine is gone after it."""
    with attached(owner.pid, mode=Mode.PROCESS) as one, attached(owner.pid, mode=Mode.SUBINTERP) as two:
        gateways = (one, two)
        body = generate_body("The", 4000, stream=True, ignore_eos=True)
        streams = [raw_request(gateway.address, "/generate", body) for gateway in gateways]
        for stream in streams:
            read_until(stream, b"\n\n")
        children = psutil.Process(owner.pid).children()
        scheduler = next(child for child in children if "scheduler" in " ".join(child.cmdline()))
        scheduler.kill()
        killed = time.monotonic()
        for stream in streams:
            assert b"was killed by signal 9" in read_until(stream, b"[DONE]")
            stream.close()
        assert time.monotonic() - killed < 5
        for gateway in gateways:
            assert gateway.wait() == 1
            assert "scheduler" in gateway.log.strip().splitlines()[-1]
        assert owner.wait(30) == 1
        assert "scheduler" in owner.log.strip().splitlines()[-1]
