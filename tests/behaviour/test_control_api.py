"""Every control method of ShardEngine, called from an application in the shards: what it gives, and what it does."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.calling import PLAIN, Caller, ask
from support.stack import generate_body

# Caches and state.


def test_flush_cache(call: Caller):
    client = call.clients[0]
    call("flush_cache")
    cached = [call.generate(client)["meta_info"]["cached_tokens"] for _ in range(2)]
    assert cached == [0, 1]
    assert call("flush_cache") == {"success": True, "message": ""}
    assert call.generate(client)["meta_info"]["cached_tokens"] == 0


def test_a_flush_waits_if_it_may(make_caller: Callable[..., Caller]):
    call = make_caller(step_seconds=0.002)
    with call.clients[0].stream("POST", "/generate", json=generate_body("ab", 300, stream=True)) as response:
        chunks = response.iter_bytes()
        next(chunks)
        assert call("flush_cache")["success"] is False
        assert call.stack.engine.running() == 1
        with ThreadPoolExecutor(1) as pool:
            flushing = pool.submit(ask, call.clients[1], "async_flush_cache", {"timeout_s": 20})
            assert b"[DONE]" in b"".join(chunks)
            assert flushing.result(20)["result"] == {"success": True, "message": ""}
    call.stack.check()


def test_state_and_information(call: Caller):
    [state] = call("get_internal_state")
    assert state["effective_max_running_requests_per_dp"] == 1024
    info = call("get_server_info")
    assert info["internal_states"] == [state]
    assert info["model_path"] == "simulated-model"
    assert info["max_total_num_tokens"] == 1 << 16
    model = call("get_model_info")
    assert (model["model_path"], model["weight_version"]) == ("simulated-model", "default")


def test_freeze_gc(call: Caller):
    before = len(call.control.housekeeping.gc_frozen)
    assert call("freeze_gc") is None
    assert call.stack.engine.wait_for(lambda: len(call.control.housekeeping.gc_frozen) == before + 1)
    assert call.control.housekeeping.gc_frozen[-1] == [700, 10, 10]


# Sessions.


def test_sessions(call: Caller):
    name = call("open_session", capacity_of_str_len=1000)
    assert name in call.control.sessions
    assert call("open_session", capacity_of_str_len=1000, session_id=name) is None
    turns = [call.generate(call.clients[0], session_params={"id": name})]
    rid = turns[0]["meta_info"]["id"]
    later = call.generate(call.clients[1], session_params={"id": name, "rid": rid})
    assert later["meta_info"]["prompt_tokens"] == 2 + 16 + 2, "the turn before, of another shard, is part of it"
    assert call("close_session", session_id=name) is None
    assert call.stack.engine.wait_for(lambda: name not in call.control.sessions)
    closed = call.clients[0].post("/generate", json=generate_body("ab", 1, session_params={"id": name}))
    assert (closed.status_code, "does not exist" in closed.text) == (400, True)


def test_a_session_of_ones_own_name(call_async: Caller):
    opened = call_async("open_session", capacity_of_str_len=9, session_id="mine", streaming=True, timeout=30)
    assert opened == "mine"
    fields = call_async.control.messages("OpenSessionReqInput")[-1]
    assert (fields["streaming"], fields["timeout"]) == (True, 30.0)
    call_async("close_session", session_id="mine")
    assert call_async.stack.engine.wait_for(lambda: "mine" not in call_async.control.sessions)


def test_streaming_sessions_are_refused_where_they_are_off(make_caller: Callable[..., Caller]):
    call = make_caller(features={})
    said, status = call.refusal("open_session", capacity_of_str_len=9, streaming=True)
    assert (status, "--enable-streaming-session" in said) == (400, True)
    assert call.control.messages("OpenSessionReqInput") == []


# Profiles.


def test_profiles(call: Caller):
    assert call("start_profile", output_dir="/tmp/traces", activities=["CPU"], profile_id="mine") is None
    assert call.control.profiling.running is not None
    assert call.control.profiling.running["activities"] == ["CPU"]
    assert call.refusal("start_profile") == (
        "Profiling is already in progress. Call /stop_profile first.",
        400,
    )
    assert call("stop_profile") is None
    assert call.control.profiling.done[-1]["profile_id"] == "mine"
    assert call.refusal("stop_profile") == ("Profiling is not in progress. Call /start_profile first.", 400)
    assert "There is no parameter 'colour'" in call.refusal("start_profile", colour="red")[0]


def test_expert_distribution(call: Caller):
    experts, dumps = call.control.experts, call.control.experts.dumps
    assert call("start_expert_distribution_record") is None
    assert experts.recording
    assert call("dump_expert_distribution_record") is None
    assert call("stop_expert_distribution_record") is None
    assert (experts.recording, experts.dumps) == (False, dumps + 1)


def test_expert_distribution_is_refused_where_the_scheduler_would_end_by_it(make_caller: Callable[..., Caller]):
    call = make_caller(server_args={})
    for what in ("start", "stop", "dump"):
        said, status = call.refusal(f"{what}_expert_distribution_record")
        assert (status, "expert_distribution_recorder_mode" in said.replace("-", "_")) == (400, True)
    assert call.texts() == {PLAIN}
    call.stack.check()


# Memory, pauses, RPC.


def test_memory(call: Caller):
    assert call("release_memory_occupation", tags=["kv_cache"]) is None
    assert call.control.memory.released == {"kv_cache"}
    assert call("resume_memory_occupation", tags=["kv_cache"]) is None
    assert call("release_memory_occupation") is None
    assert call("resume_memory_occupation") is None
    assert call.control.memory.released == set()
    assert call.texts() == {PLAIN}


def test_what_needs_memory_that_is_released_waits_or_is_refused(call: Caller):
    call("release_memory_occupation", tags=["weights", "kv_cache"])
    said = call.refusal("release_memory_occupation")[0]
    assert "It is released already: kv_cache, weights." in said
    assert "released" in call.refusal("update_weights_from_disk", model_path="/models/new")[0]
    with call.stack.client_per_shard() as others, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(call.generate, other) for other in others]
        for client in call.clients:
            assert client.get("/health_generate").status_code == 200
        assert not any(one.done() for one in waiting)
        call("resume_memory_occupation", tags=["weights"])
        assert "It is not released: cuda_graph, weights." in call.refusal("resume_memory_occupation")[0]
        assert not any(one.done() for one in waiting)
        call("resume_memory_occupation", tags=["kv_cache"])
        assert [one.result(20)["text"] for one in waiting] == [PLAIN] * 2


def test_memory_of_requests_that_were_put_back_in_the_queue(make_caller: Callable[..., Caller]):
    call = make_caller(step_seconds=0.002)
    with call.clients[0].stream("POST", "/generate", json=generate_body("ab", 100, stream=True)) as response:
        chunks = response.iter_bytes()
        next(chunks)
        call.clients = call.clients[1:]
        call("pause_generation", mode="in_place")
        assert "are paused in the engine" in call.refusal("release_memory_occupation")[0]
        call("pause_generation", mode="retract")
        call("release_memory_occupation")
        assert "First resume the memory" in call.refusal("continue_generation")[0]
        call("resume_memory_occupation")
        call("continue_generation")
        assert b'"length": 100' in b"".join(chunks).replace(b'":1', b'": 1')
    call.stack.check()


@pytest.mark.parametrize("mode_of_pause", ["abort", "in_place", "retract"])
def test_pauses(call: Caller, mode_of_pause: str):
    assert call("pause_generation", mode=mode_of_pause) is None
    # A pause that aborts is the router's: the scheduler never hears of it.
    assert call.stack.engine.wait_for(lambda: call.stack.engine.paused == (mode_of_pause != "abort"))
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(call.generate, client) for client in call.clients]
        call_other = Caller(call.stack, call.clients, "async_")
        with call.stack.client_per_shard() as others:
            for other in others:
                ask(other, "async_get_internal_state", {})
                assert "result" in ask(other, "async_get_model_info", {})
            assert not any(one.done() for one in waiting)
            assert call.stack.engine.running() == 0
            call_other.clients = others
            assert call_other("continue_generation") is None
        assert [one.result(20)["text"] for one in waiting] == [PLAIN] * 2
    assert call.stack.engine.wait_for(lambda: not call.stack.engine.paused)


def test_rpc(call: Caller):
    asked = call.stack.engine.engine_side.asked
    before = len(asked)
    assert call("collective_rpc", method="save_sharded_model", path="/p", max_size=None) is None
    assert call("save_remote_model", url="redis://store") is None
    assert call("save_sharded_model", path="/p", pattern=None, max_size=1 << 30) is None
    assert [arguments for _, arguments in asked[before:]] == [
        {"method": "save_sharded_model", "parameters": {"path": "/p", "max_size": None}},
        {"method": "save_remote_model", "parameters": {"url": "redis://store"}},
        {"method": "save_sharded_model", "parameters": {"path": "/p", "pattern": None, "max_size": 1 << 30}},
    ]


@pytest.mark.parametrize("method", ["flush_cache", "freeze_gc", "get_server_info", "stop_profile"])
def test_a_blocking_form_is_refused_on_the_loop_that_must_answer_it(call_async: Caller, method: str):
    said = call_async.clients[0].post(f"/call_here/{method}", json={}).json()["refused"]
    assert f"await async_{method} instead" in said
