"""What the Engine API's rows that a CPU engine can run do from shards, against what Engine itself does: one check each.

A check calls both forms, through both shards.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from sglang_subgw.engine.demo.model import ensure_demo_model
from support.models import RANK, adapter, other_weights
from support.programs import IMPORTABLE, program
from support.real.servers import free_port

GREEDY = {"max_new_tokens": 12, "temperature": 0.0, "ignore_eos": True}
LONG = {"max_new_tokens": 2000, "temperature": 0.0, "ignore_eos": True}
PROMPT = "The function"
NORM = "model.norm.weight"


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


class Trainer:
    """A process that is rank 0 of process groups."""

    def __init__(self) -> None:
        command = program("real.trainer")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **IMPORTABLE}
        )
        self._answer()

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=60)

    def begin(self, **command: Any) -> Callable[[], None]:
        """Let it do that; what is returned waits for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer

    def _answer(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip(), "the trainer has ended"


@dataclass(frozen=True)
class Api:
    """A client on each of two shards, further ones for what goes on meanwhile, and Engine's own methods."""

    first: httpx.Client
    second: httpx.Client
    more: list[httpx.Client]
    engine: httpx.Client
    trainer: Trainer
    pool: ThreadPoolExecutor

    @property
    def shards(self) -> tuple[httpx.Client, httpx.Client]:
        return self.first, self.second

    def both(self, method: str, /, **arguments: Any) -> Any:
        """What the coroutine form on one shard answers, and the blocking form on the other: the same."""
        one, other = call(self.first, f"async_{method}", **arguments), call(self.second, method, **arguments)
        assert one == other
        return one

    def as_engine(self, method: str, /, **arguments: Any) -> Any:
        """What both forms and Engine itself answer: the same."""
        answer = self.both(method, **arguments)
        assert answer == without_addresses(call(self.engine, method, **arguments))
        return answer

    def meanwhile(self, client: httpx.Client, method: str, /, **arguments: Any) -> Future[Any]:
        return self.pool.submit(call, client, method, **arguments)

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Until the scheduler's load is so."""
        while not condition(call(self.engine, "get_loads")[0]):
            pass


def without_addresses(answer: Any) -> Any:
    """SGLang's message objects have fields for the wire besides."""
    if not isinstance(answer, dict):
        return answer
    return {name: value for name, value in answer.items() if name not in ("rid", "http_worker_ipc")}


def check_generate(api: Api, tmp_path: Path) -> None:
    expected = ids(api.engine, "generate")
    for form in ("async_generate", "generate"):
        assert ids(api.first, form) == ids(api.second, form) == expected
        # By SGLang's own worker, as an image would be; this model takes none.
        assert ids(api.second, form, image_data=[]) == expected
    texts = {"prompt": ["a", "b c"], "sampling_params": [GREEDY, {**GREEDY, "max_new_tokens": 3}]}
    forms = ((api.first, "async_generate"), (api.second, "generate"), (api.engine, "generate"))
    found = [[one["output_ids"] for one in call(client, form, **texts)] for client, form in forms]
    assert found[0] == found[1] == found[2]


def check_get_weights_by_name(api: Api, tmp_path: Path) -> None:
    assert len(api.as_engine("get_weights_by_name", name=NORM, truncate_size=5)) == 5


def check_get_model_info(api: Api, tmp_path: Path) -> None:
    assert api.as_engine("get_model_info")["is_generation"]


def check_get_server_info(api: Api, tmp_path: Path) -> None:
    changing = {"internal_states"}
    own = call(api.engine, "get_server_info")
    for info in (call(api.first, "async_get_server_info"), call(api.second, "get_server_info")):
        assert own.keys() <= info.keys()
        differ = {name for name in own if info[name] != own[name]}
        assert differ <= changing, {name: (info[name], own[name]) for name in differ - changing}
        assert_states(info["internal_states"], own["internal_states"])


def check_get_internal_state(api: Api, tmp_path: Path) -> None:
    own = call(api.engine, "get_internal_state")
    for states in (call(api.first, "async_get_internal_state"), call(api.second, "get_internal_state")):
        assert_states(states, own)


def assert_states(states: list[dict[str, Any]], own: list[dict[str, Any]]) -> None:
    """The same, but for what a scheduler measures, and what engine routes keep to themselves or can't write."""
    assert len(states) == len(own) == 1
    [state], [expected] = states, own
    assert state.keys() == expected.keys()
    told = {name: value for name, value in expected.items() if value != "<redacted>" and not isinstance(value, float)}
    memory, own_memory = state["memory_usage"], told.pop("memory_usage")
    assert memory.keys() == own_memory.keys()
    assert {name: state[name] for name in told} == told


def check_get_loads(api: Api, tmp_path: Path) -> None:
    [own] = call(api.engine, "get_loads")
    for [load] in (call(api.first, "async_get_loads"), call(api.second, "get_loads")):
        # A section that there isn't is left out, as by SGLang's own route.
        assert load.keys() == {name for name in own if own[name] is not None or name == "decode_moments"}
        for name in ("dp_rank", "num_running_reqs", "max_total_num_tokens", "max_running_requests", "lora"):
            assert load[name] == own[name]


def check_flush_cache(api: Api, tmp_path: Path) -> None:
    assert api.as_engine("flush_cache") == {"success": True, "message": ""}
    running = api.meanwhile(api.more[0], "async_generate", prompt=PROMPT, sampling_params=LONG, rid="flushed")
    api.until(lambda load: load["num_running_reqs"] > 0)
    assert not api.as_engine("flush_cache")["success"]
    call(api.first, "abort", abort_all=True)
    running.result(60)


def check_freeze_gc(api: Api, tmp_path: Path) -> None:
    assert api.as_engine("freeze_gc") is None


def check_pause_generation(api: Api, tmp_path: Path) -> None:
    """And continue_generation: what any worker is asked meanwhile waits."""
    expected = ids(api.engine, "generate")
    for pause, go_on in (
        ((api.first, "async_pause_generation"), (api.second, "continue_generation")),
        ((api.second, "pause_generation"), (api.first, "async_continue_generation")),
        ((api.engine, "pause_generation"), (api.first, "continue_generation")),
        ((api.first, "pause_generation"), (api.engine, "continue_generation")),
    ):
        for mode in ("in_place", "retract", "abort"):
            assert call(*pause, mode=mode) is None
            asked = [api.pool.submit(ids, client, "generate") for client in (*api.more, api.engine)]
            # A round trip to the scheduler, in which it would have begun.
            call(api.second, "get_internal_state")
            assert not any(one.done() for one in asked)
            assert call(api.engine, "get_loads")[0]["num_running_reqs"] == 0
            assert call(*go_on) is None
            assert [one.result(60) for one in asked] == [expected] * len(asked)


def check_abort(api: Api, tmp_path: Path) -> None:
    def ended(client: httpx.Client, method: str, abort: Callable[[str], Any], rid: str) -> tuple[Any, Any]:
        running = api.meanwhile(client, method, prompt=PROMPT, sampling_params=LONG, rid=rid)
        api.until(lambda load: load["num_running_reqs"] > 0)
        told = abort(rid)
        answer = running.result(60)
        api.until(lambda load: load["num_running_reqs"] == 0)
        return told, answer["meta_info"]["finish_reason"]

    own = ended(api.engine, "generate", lambda rid: call(api.engine, "abort_request", rid=rid), "engine's")[1]
    one, other = api.shards
    assert ended(api.more[0], "async_generate", lambda rid: call(one, "abort", rid=rid), "here") == (True, own)
    assert ended(api.more[0], "generate", lambda rid: call(other, "abort", rid=rid), "elsewhere") == (False, own)
    assert ended(api.more[1], "generate", lambda rid: call(one, "abort", abort_all=True), "all") == (True, own)
    assert own["type"] == "abort"


def check_profile(api: Api, tmp_path: Path) -> None:
    """start_profile and stop_profile."""
    for number, (client, form) in enumerate(((api.first, "async_"), (api.second, ""), (api.engine, ""))):
        traces = tmp_path / str(number)
        assert call(client, f"{form}start_profile", output_dir=str(traces), activities=["CPU"]) is None
        assert call(client, f"{form}stop_profile") is None
        [trace] = traces.iterdir()
        assert trace.name.endswith("TP-0.trace.json.gz")


def check_sessions(api: Api, tmp_path: Path) -> None:
    """open_session and close_session."""
    session = call(api.first, "async_open_session", capacity_of_str_len=1000)
    assert call(api.second, "open_session", capacity_of_str_len=1000, session_id=session) is None
    assert call(api.engine, "open_session", capacity_of_str_len=1000, session_id="own") == "own"
    assert call(api.engine, "open_session", capacity_of_str_len=1000, session_id="own") is None
    assert call(api.second, "open_session", capacity_of_str_len=1000, session_id="named") == "named"
    for _ in range(2):
        of = {name: ids(api.second, session_params={"id": name}) for name in (session, "own", "named")}
        assert of[session] == of["own"] == of["named"]
    assert call(api.second, "close_session", session_id=session) is None
    assert call(api.first, "async_close_session", session_id="named") is None
    assert call(api.engine, "close_session", session_id="own") is None
    for client in api.shards:
        refused = call(client, "async_generate", prompt=PROMPT, session_params={"id": session})
        assert "does not exist" in refused["refused"]


def check_save_sharded_model(api: Api, tmp_path: Path) -> None:
    """And collective_rpc, which it is made of."""
    saved = []
    for number, (client, method, named) in enumerate(
        (
            (api.first, "async_save_sharded_model", {}),
            (api.second, "save_sharded_model", {}),
            (api.first, "async_collective_rpc", {"method": "save_sharded_model"}),
            (api.second, "collective_rpc", {"method": "save_sharded_model"}),
            (api.engine, "save_sharded_model", {}),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert call(client, method, path=str(folder), pattern=None, max_size=None, **named) is None
        saved.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert saved[0]
    assert all(one == saved[0] for one in saved)


def check_collective_rpc(api: Api, tmp_path: Path) -> None:
    assert refusal(api, "collective_rpc", method="nothing") == "'Scheduler' object has no attribute 'nothing'"


def check_save_remote_model(api: Api, tmp_path: Path) -> None:
    """There is no store here: that none can be reached is told as Engine tells it."""
    assert refusal(api, "save_remote_model", url="nowhere://x") == "Invalid connector type: nowhere://x"


def refusal(api: Api, method: str, /, **arguments: Any) -> str:
    """What Engine fails with; both shards name it."""
    response = api.engine.post(f"/{method}", json=arguments)
    assert response.status_code == 400, response.text
    message: str = response.json()["message"]
    assert message in api.both(method, **arguments)["refused"]
    return message


def check_weight_update(api: Api, tmp_path: Path) -> None:
    """begin_weight_update and end_weight_update."""
    for begin, end in (
        ((api.first, "async_begin_weight_update"), (api.second, "end_weight_update")),
        ((api.second, "begin_weight_update"), (api.first, "async_end_weight_update")),
        ((api.engine, "begin_weight_update"), (api.engine, "end_weight_update")),
    ):
        assert call(*begin) == [True, "Success"]
        twice = [
            call(client, name)
            for client, name in ((api.first, "async_begin_weight_update"), (api.engine, "begin_weight_update"))
        ]
        assert twice[0] == twice[1]
        assert not twice[0][0]
        assert call(*end) == [True, "Success"]
    assert ids(api.first) == ids(api.engine, "generate")


def check_update_weight_version(api: Api, tmp_path: Path) -> None:
    for client, method, version in (
        (api.first, "async_update_weight_version", "one"),
        (api.second, "update_weight_version", "two"),
        (api.engine, "update_weight_version", "default"),
    ):
        assert call(client, method, new_version=version) is None
        assert version_everywhere(api) == version


def version_everywhere(api: Api) -> str:
    """The one that all name, in the model's facts and in an answer's."""
    infos = [call(client, "get_model_info")["weight_version"] for client in (*api.shards, api.engine)]
    answers = [call(client, "generate", prompt="x", sampling_params=GREEDY) for client in (*api.shards, api.engine)]
    [version] = {*infos, *(answer["meta_info"]["weight_version"] for answer in answers)}
    return str(version)


def check_update_weights_from_disk(api: Api, tmp_path: Path) -> None:
    other, demo = other_weights(tmp_path / "other"), ensure_demo_model()
    before = ids(api.first)
    own = call(api.engine, "update_weights_from_disk", model_path=str(other))
    changed = ids(api.engine, "generate")
    assert changed != before
    for client, method, version in (
        (api.first, "async_update_weights_from_disk", "one"),
        (api.second, "update_weights_from_disk", "two"),
    ):
        assert call(client, method, model_path=str(demo), weight_version="default")[0]
        assert [ids(one) for one in api.shards] == [before] * 2
        answer = call(client, method, model_path=str(other), weight_version=version)
        assert answer[0] == own[0]
        assert answer[1] == f"{own[1]} Weight version updated to {version}."
        assert [ids(one) for one in api.shards] == [ids(api.engine, "generate"), changed]
        assert version_everywhere(api) == version
    back = call(api.engine, "update_weights_from_disk", model_path=str(demo), load_format="auto")
    assert back[0]
    call(api.engine, "update_weight_version", new_version="default")
    assert [ids(one) for one in api.shards] == [before] * 2


def check_update_weights_from_tensor(api: Api, tmp_path: Path) -> None:
    whole = call(api.first, "async_get_weights_by_name", name=NORM, truncate_size=10000)
    before = ids(api.first)
    changed = [-value for value in whole]
    for client, form in ((api.first, "async_"), (api.second, "")):
        version = f"tensor-{form or 'blocking'}"
        answers = call(client, "tensors", form=form, tensors={NORM: changed}, weight_version=version)
        assert [answer[0] for answer in answers] == [True] * 3, answers
        assert api.as_engine("get_weights_by_name", name=NORM, truncate_size=4) == changed[:4]
        assert ids(api.second) != before
        assert version_everywhere(api) == version
        call(client, "tensors", form=form, tensors={NORM: whole}, weight_version="default")
        assert ids(api.second) == before


def check_update_weights_from_distributed(api: Api, tmp_path: Path) -> None:
    """And init_weights_update_group and destroy_weights_update_group, with a trainer that is rank 0."""
    whole = call(api.first, "async_get_weights_by_name", name=NORM, truncate_size=10000)
    before = ids(api.first)
    answers = []
    for client, form in ((api.first, "async_"), (api.second, ""), (api.engine, "")):
        port = free_port()
        group = f"trainer-{port}"
        joined = api.trainer.begin(group=group, port=port)
        init = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": 2}
        told = [call(client, f"{form}init_weights_update_group", **init, group_name=group, backend="gloo")]
        joined()
        for values in ([-value for value in whole], whole):
            assert call(client, f"{form}begin_weight_update")[0]
            sent = api.trainer.begin(group=group, values=values, dtype="float16")
            update = {"names": [NORM], "dtypes": ["float16"], "shapes": [[len(whole)]], "group_name": group}
            told.append(call(client, f"{form}update_weights_from_distributed", **update))
            assert told[-1][0], told
            sent()
            assert call(client, f"{form}end_weight_update")[0]
            assert api.as_engine("get_weights_by_name", name=NORM, truncate_size=4) == values[:4]
            assert (ids(api.second) == before) == (values is whole)
        told.append(call(client, f"{form}destroy_weights_update_group", group_name=group))
        api.trainer.begin(group=group)()
        assert [row[0] for row in told] == [True] * 4, told
        answers.append([row[1].replace(group, "GROUP").replace(str(port), "PORT") for row in told])
    assert answers[0] == answers[1] == answers[2]


def check_lora_adapter(api: Api, tmp_path: Path) -> None:
    """load_lora_adapter and unload_lora_adapter, both forms."""
    path = str(adapter(tmp_path / "poet", seed=1))
    plain = ids(api.engine, "generate")
    expected: list[int] = []
    own: list[Any] = []
    for client, form in ((api.engine, ""), (api.first, "async_"), (api.second, "")):
        told = [
            call(client, f"{form}load_lora_adapter", lora_name="poet", lora_path=path),
            call(client, f"{form}load_lora_adapter", lora_name="poet", lora_path=path),
        ]
        expected = expected or own_ids(api.engine, "poet")
        assert [ids(one, lora_path="poet") for one in api.shards] == [expected] * 2
        assert own_ids(api.engine, "poet") == expected != plain
        told += [call(client, f"{form}unload_lora_adapter", lora_name="poet") for _ in range(2)]
        assert [row["success"] for row in told] == [True, False, True, False]
        own = own or [adapters_plain(without_addresses(row)) for row in told]
        assert [adapters_plain(row) for row in told] == own or client is api.engine
        assert [ids(one) for one in api.shards] == [plain] * 2


def adapters_plain(answer: dict[str, Any]) -> Any:
    """What is in `loaded_adapters`, and whether there was a message: SGLang's shows its own containers."""
    return answer["success"], bool(answer["error_message"]), list(answer["loaded_adapters"] or {})


def check_load_lora_adapter_from_tensors(api: Api, tmp_path: Path) -> None:
    """The adapter that Engine loads from files, given as tensors: the same tokens."""
    from safetensors.torch import load_file

    path = adapter(tmp_path / "poet", seed=1)
    assert call(api.engine, "load_lora_adapter", lora_name="files", lora_path=str(path))["success"]
    expected = own_ids(api.engine, "files")
    assert call(api.engine, "unload_lora_adapter", lora_name="files")["success"]
    tensors = {name: value.tolist() for name, value in load_file(path / "adapter_model.safetensors").items()}
    config = json.loads((path / "adapter_config.json").read_text())
    assert config["r"] == RANK
    for client, form in ((api.first, "async_"), (api.second, "")):
        told = call(client, "lora_tensors", form=form, tensors=tensors, lora_name="tensors", config_dict=config)
        assert told["success"], told
        assert [ids(one, lora_path="tensors") for one in api.shards] == [expected] * 2
        assert own_ids(api.engine, "tensors") == expected
        assert call(client, f"{form}unload_lora_adapter", lora_name="tensors")["success"]


def check_what_needs_an_accelerator(api: Api, tmp_path: Path) -> None:
    """Refused, for it would end a scheduler on the CPU."""
    for name in ("release_memory_occupation", "resume_memory_occupation", "start_expert_distribution_record"):
        assert "refused" in api.both(name)


type Check = Callable[[Api, Path], None]
CHECKS: dict[str, Check] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}
SEVERAL = {
    "continue_generation": "pause_generation",
    "start_profile": "profile",
    "stop_profile": "profile",
    "open_session": "sessions",
    "close_session": "sessions",
    "begin_weight_update": "weight_update",
    "end_weight_update": "weight_update",
    "init_weights_update_group": "update_weights_from_distributed",
    "destroy_weights_update_group": "update_weights_from_distributed",
    "load_lora_adapter": "lora_adapter",
    "unload_lora_adapter": "lora_adapter",
}
"""Rows that another's check calls."""
ELSEWHERE = {"encode", "rerank", "score"}
"""Rows that other kinds of model have: test_real_numbers calls them in each mode."""


@contextmanager
def trainer_process() -> Iterator[Trainer]:
    trainer = Trainer()
    try:
        yield trainer
    finally:
        trainer.close()
