"""The user's own application, over the simulated engine in every mode."""

from __future__ import annotations

import itertools

import pytest

from sglang_subgw.errors import ConfigError, ShardStartError
from support.stack import echoed


def test_a_fastapi_application_generates_and_streams(make_stack, mode):
    pytest.importorskip("fastapi")
    stack = make_stack(config={"app": "support.apps.fast:app"})
    assert stack.gateway.config.mode is mode
    shards = set()
    for _ in range(6):
        answer = stack.post("/ask", {"text": "abcdef", "tokens": 5}).json()
        assert answer["text"] == echoed("abcdef", 5)
        assert answer["mode"] == mode
        assert answer["greeting"] == "hello"
        shards.add(answer["shard"])
    assert shards == {0, 1}
    lines = stack.post("/ask/stream", {"text": "abcdef", "tokens": 5}).text.splitlines()
    assert lines[-1] == echoed("abcdef", 5)
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(lines))
    refused = stack.post("/ask", {"text": "abcdef", "tokens": 0})
    assert refused.status_code == 422, "pydantic checks in a shard as anywhere"
    stack.wait_idle()
    stack.check()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("app", "asgi"), ("Counting", "class"), ("factory", "async factory"), ("factory_of_two", "two")],
)
def test_applications_and_factories(make_stack, mode, name, kind):
    stack = make_stack(shards=1, config={"app": f"support.apps.plain:{name}"})
    with stack.client() as client:
        assert client.get("/").json()["kind"] == kind


def test_the_gateways_own_routes_beside_the_applications(make_stack, mode):
    stack = make_stack(shards=1, config={"app": "support.apps.plain:beside"})
    with stack.client() as client:
        assert client.get("/").json() == {"kind": "beside"}
        assert client.get("/health").status_code == 200
    assert stack.generate("abcdef", 5)["text"] == echoed("abcdef", 5)
    model = stack.engine.contract.model.served_model_name
    assert stack.stream("/v1/completions", {"model": model, "prompt": "abcdef", "max_tokens": 5})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("support.apps.plain", "is not module:attribute"),
        ("support.apps.absent:app", "there is no module 'support.apps.absent'"),
        ("support.apps.plain:absent", "has no attribute 'absent'"),
        ("support.apps.plain:not_an_app", "of type int"),
        ("support.apps.plain:no_argument", "takes 0 arguments"),
    ],
)
def test_a_wrong_name_is_told_before_a_shard_starts(make_stack, mode, name, said):
    with pytest.raises(ConfigError, match=said):
        make_stack(config={"app": name})


def test_a_factory_that_makes_nothing_is_named(make_stack, mode):
    with pytest.raises(ShardStartError, match="'support.apps.plain:makes_nothing' made an object of type NoneType"):
        make_stack(shards=1, config={"app": "support.apps.plain:makes_nothing"})


def test_an_application_whose_start_up_fails_ends_the_start(make_stack, mode):
    with pytest.raises(ShardStartError, match="The application's own start-up failed"):
        make_stack(shards=1, config={"app": "support.apps.plain:broken"})
