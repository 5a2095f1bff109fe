"""The whole Engine API from shards of a real engine on the CPU, in each mode: what the Engine itself gives.

One engine for all: it has LoRA on, and its own methods are asked through engine routes.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from sglang_subgw.config import Mode
from support.api_tables import engine_rows, manager_rows
from support.attached import CommandProcess, attached
from support.client import client_per_shard
from support.models import RANK, TARGETS, adapter, other_weights
from support.programs import IMPORTABLE
from support.real.api_checks import CHECKS, ELSEWHERE, SEVERAL, Api, Trainer, call, ids, own_ids, trainer_process
from support.real.engine_routes import admin_client, options
from support.real.number_scenarios import ANSWERED
from support.real.number_scenarios import MODES as NUMBER_MODES

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

MODES = (Mode.SUBINTERP, Mode.PROCESS, Mode.THREAD)


@pytest.fixture(scope="module")
def owner() -> Iterator[CommandProcess]:
    lora = ("--enable-lora", "--max-lora-rank", str(RANK), "--lora-target-modules", *TARGETS)
    managers = {row.name for row in manager_rows() if row.cpu}
    own = {row.name for row in engine_rows() if row.cpu and row.form == "both"} - {"load_lora_adapter_from_tensors"}
    routes = options(*(f"/{name}" for name in sorted(own)), *(f"/{name}:tm" for name in sorted(managers)))
    with CommandProcess("--engine-only", *routes, *lora, program="") as process:
        yield process


@pytest.fixture
def engine(owner: CommandProcess) -> Iterator[httpx.Client]:
    """Engine's own methods."""
    with admin_client(owner.banner) as client:
        yield client


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    with trainer_process() as process:
        yield process


@contextmanager
def shards_of(owner: CommandProcess, mode: Mode, shards: int = 2) -> Iterator[list[httpx.Client]]:
    """A client on every shard of a gateway whose application calls its engine by name."""
    with gateway_on(owner, mode, shards) as gateway, client_per_shard(gateway.address, shards) as clients:
        yield clients


@contextmanager
def gateway_on(owner: CommandProcess, mode: Mode, shards: int) -> Iterator[CommandProcess]:
    assert owner.banner
    app = ("--app", "support.apps.engine_calls:app")
    with attached(owner.pid, *app, mode=mode, shards=shards, environment=IMPORTABLE) as gateway:
        yield gateway


@pytest.fixture(scope="module", params=MODES)
def gateway(request: pytest.FixtureRequest, owner: CommandProcess) -> Iterator[CommandProcess]:
    with gateway_on(owner, request.param, 2) as process:
        yield process


@pytest.fixture
def api(gateway: CommandProcess, engine: httpx.Client, trainer: Trainer) -> Iterator[Api]:
    with ExitStack() as ends:
        first, second = ends.enter_context(client_per_shard(gateway.address, 2))
        more = ends.enter_context(client_per_shard(gateway.address, 2))
        pool = ends.enter_context(ThreadPoolExecutor(4))
        yield Api(first, second, more, engine, trainer, pool)


@pytest.mark.parametrize("check", CHECKS)
def test_from_each_shard_it_does_what_it_does_for_engine(api: Api, check: str, tmp_path: Path) -> None:
    CHECKS[check](api, tmp_path)


def test_every_method_that_a_cpu_engine_can_run_has_a_check() -> None:
    rows = [row for row in (*engine_rows(), *manager_rows()) if row.cpu and row.form != "\N{EN DASH}"]
    named = {row.method.removeprefix("async_") for row in rows}
    assert named - {*CHECKS} - {*SEVERAL} - ELSEWHERE == set()
    assert {*SEVERAL.values()} <= {*CHECKS}
    assert {method for calls in ANSWERED.values() for method, _ in calls} == ELSEWHERE
    assert {*NUMBER_MODES} == {*MODES}


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
