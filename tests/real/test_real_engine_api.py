"""The whole Engine API from shards of a real engine on the CPU, in each mode: what the Engine itself gives.

One engine for all: it has LoRA on, and its own methods are asked through engine routes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_real_engine_routes import admin_client, options

from sglang_subgw.config import Mode
from support.attached import CommandProcess, attached
from support.client import client_per_shard
from support.models import RANK, TARGETS, adapter, other_weights

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

MODES = (Mode.SUBINTERP, Mode.PROCESS, Mode.THREAD)
OWN = ("generate", "get_server_info", "get_model_info", "get_weights_by_name", "open_session", "close_session")
GREEDY = {"max_new_tokens": 12, "temperature": 0.0, "ignore_eos": True}
PROMPT = "The function"
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def owner() -> Iterator[CommandProcess]:
    lora = ("--enable-lora", "--max-lora-rank", str(RANK), "--lora-target-modules", *TARGETS)
    routes = options(*(f"/{name}" for name in OWN), "/load_lora_adapter", "/unload_lora_adapter")
    with CommandProcess("--engine-only", *routes, *lora, program="") as process:
        yield process


@pytest.fixture
def engine(owner: CommandProcess) -> Iterator[httpx.Client]:
    """Engine's own methods."""
    with admin_client(owner.banner) as client:
        yield client


@contextmanager
def shards_of(owner: CommandProcess, mode: Mode, shards: int = 2) -> Iterator[list[httpx.Client]]:
    """A client on every shard of a gateway whose application calls its engine by name."""
    environment = {"PYTHONPATH": str(TESTS)}
    app = ("--app", "support.apps.engine_calls:app")
    with ExitStack() as ends:
        gateway = ends.enter_context(attached(owner.pid, *app, mode=mode, shards=shards, environment=environment))
        yield ends.enter_context(client_per_shard(gateway.address, shards))


def call(client: httpx.Client, method: str, /, **arguments: Any) -> Any:
    response = client.post(f"/{method}", json=arguments, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()


def ids(client: httpx.Client, method: str = "async_generate", **more: Any) -> list[int]:
    answer = call(client, method, prompt=PROMPT, sampling_params=GREEDY, **more)
    assert "refused" not in answer, answer
    found: list[int] = answer["output_ids"]
    return found


def own_ids(engine: httpx.Client, adapter_name: str) -> list[int]:
    """Of Engine.generate, which says that it takes adapters' names as a list."""
    [answer] = call(engine, "generate", prompt=[PROMPT], sampling_params=GREEDY, lora_path=[adapter_name])
    found: list[int] = answer["output_ids"]
    return found


@pytest.mark.parametrize("mode", MODES)
def test_every_method_that_a_cpu_engine_can_run(
    owner: CommandProcess, engine: httpx.Client, mode: Mode, tmp_path: Path
) -> None:
    with shards_of(owner, mode) as (first, second):
        for form in ("async_generate", "generate"):
            assert ids(first, form) == ids(second, form) == ids(engine, "generate")
        # By SGLang's own worker, as an image would be; this model takes none.
        assert ids(second, image_data=[]) == ids(engine, "generate")
        for form in ("async_get_weights_by_name", "get_weights_by_name"):
            arguments = {"name": "model.norm.weight", "truncate_size": 5}
            assert call(first, form, **arguments) == call(engine, "get_weights_by_name", **arguments)
        assert call(first, "async_get_model_info") == call(engine, "get_model_info")
        own, info = call(engine, "get_server_info"), call(first, "async_get_server_info")
        assert own.keys() <= info.keys()
        assert {k: info[k] for k in ("model_path", "tp_size", "version", "max_total_num_tokens")} == {
            k: own[k] for k in ("model_path", "tp_size", "version", "max_total_num_tokens")
        }
        assert info["internal_states"][0].keys() == own["internal_states"][0].keys()
        assert len(call(second, "get_internal_state")) == 1
        assert call(first, "async_flush_cache") == {"success": True, "message": ""}
        assert call(second, "flush_cache", timeout_s=1.0)["success"]
        for name in ("async_freeze_gc", "async_pause_generation", "async_continue_generation", "async_stop_profile"):
            if name == "async_stop_profile":
                assert call(first, "async_start_profile", output_dir=str(tmp_path), activities=["CPU"]) is None
            assert call(second, name) is None
        assert list(tmp_path.iterdir())
        session = call(first, "async_open_session", capacity_of_str_len=1000)
        assert call(second, "open_session", capacity_of_str_len=1000, session_id=session) is None
        assert call(engine, "open_session", capacity_of_str_len=1000, session_id="own") == "own"
        assert ids(second, session_params={"id": session}) == ids(first, session_params={"id": "own"})
        assert call(second, "close_session", session_id=session) is None
        assert call(engine, "close_session", session_id="own") is None
        refused = call(first, "async_generate", prompt=PROMPT, session_params={"id": session})
        assert "does not exist" in refused["refused"]
        saved = tmp_path / "saved"
        saved.mkdir()
        assert call(first, "async_save_sharded_model", path=str(saved), pattern=None, max_size=None) is None
        assert list(saved.iterdir())
        assert "has no attribute 'nothing'" in call(second, "collective_rpc", method="nothing")["refused"]
        for name in ("release_memory_occupation", "resume_memory_occupation", "start_expert_distribution_record"):
            assert "refused" in call(first, f"async_{name}"), "it would end a scheduler on the CPU"
        assert call(first, "async_begin_weight_update") == [True, "Success"]
        assert call(second, "end_weight_update") == [True, "Success"]
        assert ids(second) == ids(engine, "generate")


@pytest.mark.parametrize("mode", MODES[:2])
def test_weights_from_tensors_that_a_shard_without_torch_made(
    owner: CommandProcess, engine: httpx.Client, mode: Mode
) -> None:
    def norm(client: httpx.Client, method: str) -> Any:
        return call(client, method, name="model.norm.weight", truncate_size=4)

    with shards_of(owner, mode) as (first, second):
        whole = call(first, "async_get_weights_by_name", name="model.norm.weight", truncate_size=10000)
        before = ids(first)
        changed = [-value for value in whole]
        answers = call(first, "tensors", tensors={"model.norm.weight": changed}, weight_version=f"tensor-{mode}")
        assert [answer[0] for answer in answers] == [True] * 3, answers
        assert norm(second, "get_weights_by_name") == norm(engine, "get_weights_by_name") == changed[:4]
        assert ids(second) != before
        for one in (first, second):
            assert call(one, "async_get_model_info")["weight_version"] == f"tensor-{mode}"
        assert call(engine, "get_model_info")["weight_version"] == f"tensor-{mode}"
        call(second, "tensors", tensors={"model.norm.weight": whole}, weight_version="default")
        assert ids(first) == before


def test_lora_through_four_shards_as_on_stock_sglang(
    owner: CommandProcess, engine: httpx.Client, tmp_path: Path
) -> None:
    poet, other = (str(adapter(tmp_path / name, seed=seed)) for name, seed in (("poet", 1), ("other", 2)))
    plain = ids(engine, "generate")
    with shards_of(owner, Mode.SUBINTERP, 4) as shards:
        loaded = call(shards[0], "async_load_lora_adapter", lora_name="poet", lora_path=poet)
        assert loaded["success"], loaded
        # SGLang's own worker learns of it, too: what it answers is what the adapter makes of the model.
        expected = own_ids(engine, "poet")
        assert expected != plain
        assert [ids(shard, lora_path="poet") for shard in shards] == [expected] * 4
        assert [ids(shard) for shard in shards] == [plain] * 4
        # And the other way round.
        assert call(engine, "load_lora_adapter", lora_name="other", lora_path=other)["success"]
        second = [ids(shard, lora_path="other") for shard in shards]
        assert second == [own_ids(engine, "other")] * 4
        assert second[0] not in (plain, expected)
    with shards_of(owner, Mode.PROCESS) as shards:
        assert [ids(shard, lora_path="poet") for shard in shards] == [expected] * 2, "shards that start later know it"
        assert call(shards[1], "unload_lora_adapter", lora_name="poet")["success"]
        assert call(engine, "unload_lora_adapter", lora_name="other")["success"]
        assert not call(shards[0], "async_unload_lora_adapter", lora_name="other")["success"]
        assert [ids(shard) for shard in shards] == [plain] * 2


def test_weights_from_disk_are_those_of_a_fresh_engine_on_every_shard(
    owner: CommandProcess, engine: httpx.Client, tmp_path: Path
) -> None:
    directory = other_weights(tmp_path / "other")
    with CommandProcess("--engine-only", *options("/generate"), "--model-path", str(directory), program="") as fresh:
        with admin_client(fresh.banner) as client:
            expected = ids(client, "generate")
        with shards_of(fresh, Mode.SUBINTERP) as elsewhere, shards_of(owner, Mode.SUBINTERP, 4) as shards:
            # Two engines with a gateway each: one is changed, the other does not hear of it.
            before = ids(shards[0])
            assert before != expected
            update = {"model_path": str(directory), "weight_version": "second"}
            assert call(shards[2], "async_update_weights_from_disk", **update)[0]
            assert [ids(shard) for shard in shards] == [expected] * 4
            assert ids(engine, "generate") == expected
            infos = [call(shard, "async_get_model_info") for shard in shards]
            assert [info["weight_version"] for info in infos] == ["second"] * 4
            assert infos == [call(engine, "get_model_info")] * 4
            assert [call(shard, "async_get_model_info")["weight_version"] for shard in elsewhere] == ["default"] * 2
            assert [ids(shard) for shard in elsewhere] == [expected] * 2
