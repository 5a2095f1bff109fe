"""A coroutine function as a shard's server, over the simulated engine in every mode: its life, and its failures."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_subgw.config import GatewayConfig
from sglang_subgw.errors import ConfigError, ShardStartError
from sglang_subgw.gateway import ShardGateway
from sglang_subgw.modes.choose import Choice
from support.apps.coroutines import END
from support.faults import until
from support.stack import Stack

APP = "support.apps.coroutines"


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, list[str]]]:
    """What each life of each shard has noted, by "index-generation"."""
    monkeypatch.setenv("SUBGW_TEST_NOTES", str(tmp_path))
    return lambda: {file.name: file.read_text().splitlines() for file in tmp_path.iterdir()}


def states(stack: Stack) -> dict[int, tuple[str, int]]:
    return {shard["index"]: (shard["state"], shard["generation"]) for shard in stack.gateway.shards}


def test_it_serves_in_every_shard_listens_nowhere_and_ends_when_asked(make_stack, mode, notes):
    stack = make_stack(config={"serve": f"{APP}:serve"})
    assert notes() == {"0-1": ["abc"], "1-1": ["abc"]}
    assert stack.gateway.urls == []
    with pytest.raises(ConfigError, match="This gateway has no address"):
        _ = stack.address
    stack.gateway.drain()
    assert notes() == {"0-1": ["abc", "drained"], "1-1": ["abc", "drained"]}
    stack.check()


@pytest.mark.parametrize("name", ["worker.serve", "worker", "bound"])
def test_a_method_an_object_and_a_partial_are_coroutine_functions_too(make_stack, mode, notes, name):
    make_stack(shards=1, config={"serve": f"{APP}:{name}"})
    assert notes() == {"0-1": ["abc"]}


def test_it_is_restarted_and_the_number_of_shards_changes(make_stack, mode, notes):
    stack = make_stack(config={"serve": f"{APP}:serve"})
    stack.gateway.restart_shards()
    until(lambda: states(stack) == {0: ("ready", 2), 1: ("ready", 2)})
    assert notes() == {"0-1": ["abc", "drained"], "1-1": ["abc", "drained"], "0-2": ["abc"], "1-2": ["abc"]}
    stack.gateway.resize(3)
    until(lambda: states(stack).get(2) == ("ready", 1))
    stack.gateway.resize(1)
    until(lambda: states(stack) == {0: ("ready", 2)})
    assert notes()["2-1"] == notes()["1-2"] == ["abc", "drained"]
    stack.check()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("returns", r"RuntimeError: .*:returns returned by itself; until_draining\(\) tells when to"),
        ("raises", r"LookupError: no place to listen"),
        ("cancels", r"RuntimeError: .*:cancels cancelled itself"),
    ],
)
def test_one_that_ends_before_it_serves_fails_the_start_with_the_reason(make_stack, mode, name, said):
    with pytest.raises(ShardStartError, match=rf"Shard \d failed: {said}"):
        make_stack(config={"serve": f"{APP}:{name}"})


def test_one_that_never_says_that_it_serves_fails_the_start_and_what_is_missing_is_said(make_engine, mode):
    config = GatewayConfig(serve=f"{APP}:never_ready", shards=1, mode=mode, start_timeout_seconds=2.0)
    said = r"not ready within 2 s, which a serve function is once it awaits engine.until_draining\(\)"
    # Chosen: the probe would have to be through in this time, too.
    gateway = ShardGateway(make_engine(), config, choice=Choice(mode, "the test's"))
    with pytest.raises(ShardStartError, match=said):
        gateway.start()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("returns_later", "RuntimeError: support.apps.coroutines:returns_later returned by itself"),
        ("raises_later", "LookupError: lost"),
    ],
)
def test_one_that_ends_unasked_is_told_with_its_reason_and_started_again(
    make_stack, mode, notes, tmp_path, caplog, name, said
):
    stack = make_stack(config={"serve": f"{APP}:{name}"})
    (tmp_path / END).touch()
    until(lambda: states(stack) == {0: ("ready", 1), 1: ("ready", 2)})
    assert f"Shard 1 ended and is started again: its server failed: {said}" in caplog.text
    assert "Traceback" in caplog.text
    assert said in stack.gateway.shards[1]["last_failure"]
    stack.check()


@pytest.mark.parametrize("restart", [False, True], ids=["stop", "restart"])
def test_one_that_does_not_return_in_time_is_cancelled_after_its_requests_have_ended(make_stack, mode, notes, restart):
    stack = make_stack(shards=1, step_seconds=0.01, config={"serve": f"{APP}:stays", "drain_timeout_seconds": 0.3})
    assert stack.engine.wait_for(lambda: stack.engine.running() == 1, 5)
    began = time.monotonic()
    if restart:
        stack.gateway.restart_shards()
        until(lambda: states(stack) == {0: ("ready", 2)})
    else:
        stack.gateway.drain()
    assert time.monotonic() - began < 5
    told, then = notes()["0-1"]
    assert "did not end within the 0.3 s given to it" in told
    assert then == "cancelled"
    assert stack.engine.wait_for(lambda: stack.engine.running() == int(restart), 5)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (APP, "is not module:attribute. For instance --serve service:serve"),
        ("support.apps.absent:serve", "there is no module 'support.apps.absent'"),
        (f"{APP}:absent", "has no attribute 'absent'"),
        (f"{APP}:plain", "is of type function, not a coroutine function"),
        (f"{APP}:NOT_CALLABLE", "is of type int, not a coroutine function"),
        (f"{APP}:Worker", "is of type type, not a coroutine function"),
        (f"{APP}:one_argument", "can't be called with an engine and a shard: too many positional arguments"),
    ],
)
def test_a_wrong_name_is_told_before_a_shard_starts(make_stack, mode, name, said):
    with pytest.raises(ConfigError) as failure:
        make_stack(config={"serve": name})
    assert str(failure.value).startswith(f"--serve {name!r}")
    assert said in str(failure.value)


def test_an_application_and_a_coroutine_function_exclude_each_other():
    with pytest.raises(ConfigError, match="app 'a:b' and serve 'c:d' exclude each other"):
        GatewayConfig(app="a:b", serve="c:d")
