"""endpoint_server.py: a server that is not HTTP, an endpoint per shard, found by its identity."""

from __future__ import annotations

import importlib
import itertools
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sglang_subgw.config import Mode
from support.attached import simulated_owner
from support.faults import until
from support.stack import Stack, echoed, running_stack

SERVE = {"serve": "endpoint_server:serve"}


@pytest.fixture
def discovery(examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of registrations."""
    monkeypatch.setenv("DISCOVERY", str(tmp_path / "discovery"))
    return tmp_path / "discovery"


@pytest.fixture
def planner(discovery: Path) -> Callable[[], dict[str, list[dict[str, Any]]]]:
    """What a planner sees now."""
    found: Callable[[], dict[str, list[dict[str, Any]]]] = importlib.import_module("endpoint_server").engines
    return found


def generations(instances: list[dict[str, Any]]) -> dict[int, int]:
    return {instance["index"]: instance["generation"] for instance in instances}


@contextmanager
def connected(instance: dict[str, Any]) -> Iterator[Any]:
    """A connection to an endpoint, as a file."""
    host, _, port = instance["address"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as sock, sock.makefile("rw") as file:
        yield file


def ask(file: Any, **request: Any) -> Any:
    """One line out, one line in."""
    print(json.dumps(request), file=file, flush=True)
    return json.loads(file.readline())


def streamed(file: Any, **request: Any) -> list[str]:
    """One line out, and what comes back up to the answer's end."""
    outs = [ask(file, **request)]
    while not outs[-1]["meta_info"]["finish_reason"]:
        outs.append(json.loads(file.readline()))
    return [out["text"] for out in outs]


def params(tokens: int, **more: Any) -> dict[str, Any]:
    return {"max_new_tokens": tokens, **more}


def test_every_shard_is_an_endpoint_of_its_own_and_a_planner_counts_the_engine_once(make_stack, mode, planner):
    stack = make_stack(config=SERVE)
    ((engine_id, instances),) = planner().items()
    assert engine_id == stack.engine.contract.engine_id
    assert generations(instances) == {0: 1, 1: 1}
    assert {(instance["mode"], instance["count"], instance["model"]) for instance in instances} == {
        (mode, 2, stack.engine.contract.model.served_model_name)
    }
    assert len({instance["address"] for instance in instances}) == 2
    for instance in instances:
        with connected(instance) as file:
            assert ask(file, text="abc", sampling_params=params(5))["text"] == echoed("abc", 5)
            texts = streamed(file, text="abc", sampling_params=params(30), stream=True)
            assert texts[-1] == echoed("abc", 30)
            assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert [shard["finished"] for shard in stack.gateway.shards] == [2, 2]
    stack.check()


def test_what_is_wrong_with_a_line_is_told_and_the_next_one_is_answered(make_stack, mode, planner):
    stack = make_stack(shards=1, config=SERVE)
    ((instance,),) = planner().values()
    with connected(instance) as file:
        for wrong, said in [
            ({}, "KeyError: 'text'"),
            ({"text": "abc", "sampling_params": {"temperature": -1}}, "RequestRejected: "),
            ({"text": "abc", "no_such_option": 1}, "TypeError: "),
        ]:
            assert ask(file, **wrong)["error"].startswith(said)
        print("no JSON", file=file, flush=True)
        assert json.loads(file.readline())["error"].startswith("JSONDecodeError: ")
        assert ask(file, text="abc", sampling_params=params(3))["text"] == "abc"
    stack.check()


def test_a_client_that_leaves_ends_its_request(make_stack, mode, planner):
    stack = make_stack(shards=1, step_seconds=0.005, config=SERVE)
    ((instance,),) = planner().values()
    with connected(instance) as file:
        assert ask(file, text="abc", sampling_params=params(4000, ignore_eos=True), stream=True)["text"].startswith("a")
    stack.wait_idle()
    stack.check()


def test_it_follows_restarts_and_the_number_of_shards_and_leaves_nothing(make_stack, mode, planner, discovery):
    stack: Stack = make_stack(step_seconds=0.01, config=SERVE)

    def seen() -> dict[int, int]:
        return {index: generation for found in planner().values() for index, generation in generations(found).items()}

    stack.gateway.restart_shards()
    until(lambda: seen() == {0: 2, 1: 2})
    stack.gateway.resize(3)
    until(lambda: seen() == {0: 2, 1: 2, 2: 1})
    stack.gateway.resize(1)
    until(lambda: seen() == {0: 2} and len(stack.gateway.shards) == 1)
    ((instance,),) = planner().values()
    with connected(instance) as file:
        answers: list[Any] = []
        asking = threading.Thread(target=lambda: answers.append(ask(file, text="abc", sampling_params=params(30))))
        asking.start()
        assert stack.engine.wait_for(lambda: stack.engine.running() == 1, 5)
        stack.gateway.drain()
        asking.join(20)
        assert answers[0]["text"] == echoed("abc", 30), "what runs is finished"
        assert file.readline() == ""
    assert list(discovery.iterdir()) == []


def test_two_engines_are_two_for_a_planner(planner):
    with ExitStack() as ends:
        stacks = []
        for _ in range(2):
            directory = tempfile.mkdtemp(prefix="sgt-")
            ends.callback(shutil.rmtree, directory)
            stacks.append(ends.enter_context(running_stack(Path(directory), Mode.PROCESS, config=SERVE)))
        found = planner()
        assert set(found) == {stack.engine.contract.engine_id for stack in stacks}
        assert [generations(instances) for instances in found.values()] == [{0: 1, 1: 1}] * 2


def test_the_command_line_and_its_signals(mode, discovery, planner, examples):
    def seen() -> dict[int, int]:
        return {index: generation for found in planner().values() for index, generation in generations(found).items()}

    with simulated_owner("--serve", "endpoint_server:serve", "--shards", "2", "--mode", mode) as server:
        assert "address   none: each shard serves by endpoint_server:serve" in server.banner
        assert "curl" not in server.banner
        script = [sys.executable, "-W", "error", str(examples / "endpoint_server.py")]
        said = subprocess.run(script, capture_output=True, text=True, timeout=30, check=True).stdout
        ((engine_id, instances),) = planner().items()
        addresses = ", ".join(instance["address"] for instance in instances)
        assert said == f"engine {engine_id} ({instances[0]['model']}): 2 endpoints at {addresses}\n"
        server.send(signal.SIGUSR1)
        until(lambda: seen() == {0: 2, 1: 2}, 20)
        server.send(signal.SIGTTIN)
        until(lambda: seen() == {0: 2, 1: 2, 2: 1}, 20)
        server.send(signal.SIGTERM)
        assert server.wait() == 0, server.log
    assert list(discovery.iterdir()) == []


@pytest.mark.parametrize("option", ["--host", "--port", "--accept"])
def test_what_says_nothing_to_it_is_refused(option):
    value = {"--host": "localhost", "--port": "8000", "--accept": "reuseport"}[option]
    with simulated_owner("--serve", "endpoint_server:serve", option, value) as server:
        assert server.wait() == 2
    assert f"{option} says nothing to --serve" in server.log
