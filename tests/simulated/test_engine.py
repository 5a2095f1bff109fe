"""The simulated engine by itself, with a plain worker on its wire, in both codecs and both groupings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from sglang_subgw.simulated import SimulatedEngine, SimulatedEngineProcess, fixed_text, logprob_of
from sglang_subgw.simulated.wire.structs import make
from support.worker import PlainWorker, text_of


@pytest.fixture
def worker(engine: SimulatedEngine) -> Iterator[PlainWorker]:
    with PlainWorker(engine.contract) as plain:
        yield plain
    assert engine.violations == []
    assert engine.router_alive()


def answer(worker: PlainWorker, prompt: str, **fields):
    worker.generate("r", prompt, **fields)
    chunks = worker.collect("r")["r"]
    return text_of(chunks), chunks[-1]["finished_reasons"], chunks


def test_it_echoes_the_prompt(worker: PlainWorker):
    text, reason, chunks = answer(worker, "abc", max_new_tokens=7)
    assert text == "abcabca"
    assert reason == {"type": "length", "length": 7}
    assert len(chunks) == 7
    assert chunks[-1]["completion_tokens"] == 7


def test_a_request_that_does_not_stream_is_one_message(worker: PlainWorker):
    text, _, chunks = answer(worker, "abc", stream=False)
    assert (text, len(chunks)) == ("abcabcab", 1)


def test_a_long_request_that_does_not_stream_reports_every_50_tokens(worker: PlainWorker):
    _, _, chunks = answer(worker, "abc", stream=False, max_new_tokens=120)
    assert [len(chunk["output_ids"]) for chunk in chunks] == [50, 50, 20]


def test_stream_interval(worker: PlainWorker):
    _, _, chunks = answer(worker, "abc", stream_interval=4, max_new_tokens=9)
    assert [len(chunk["output_ids"]) for chunk in chunks] == [1, 4, 4]


def test_stop_string_is_held_back_and_cut(worker: PlainWorker):
    text, reason, chunks = answer(worker, "abcdef", stop_strs=["cde"], max_new_tokens=20)
    assert (text, reason) == ("ab", {"type": "stop", "matched": "cde"})
    assert not any("c" in chunk["output_strs"] for chunk in chunks)


def test_stop_token(worker: PlainWorker):
    text, reason, chunks = answer(worker, "abcdef", stop_token_ids={ord("c")}, max_new_tokens=20)
    assert (text, reason) == ("ab", {"type": "stop", "matched": ord("c")})
    assert [token for chunk in chunks for token in chunk["output_ids"]] == list(b"abc")


def test_characters_are_whole(worker: PlainWorker):
    _, _, chunks = answer(worker, "é한😀", max_new_tokens=9)
    assert [chunk["output_strs"] for chunk in chunks] == ["", "é", "", "", "한", "", "", "", "😀"]


def test_a_character_cut_by_the_limit(worker: PlainWorker):
    assert answer(worker, "a😀", max_new_tokens=3)[0] == "a\ufffd"


def test_logprobs(worker: PlainWorker):
    asked = {"return_logprob": True, "logprob_start_len": 1, "top_logprobs_num": 2, "token_ids_logprob": [5]}
    _, _, chunks = answer(worker, "abc", max_new_tokens=2, **asked)
    assert chunks[0]["input_token_logprobs_val"] == [None, logprob_of(ord("c"), 2)]
    assert chunks[0]["input_token_logprobs_idx"] == list(b"bc")
    assert chunks[1]["input_token_logprobs_val"] == []
    assert [chunk["output_token_logprobs_idx"] for chunk in chunks] == [[ord("a")], [ord("b")]]
    assert chunks[1]["output_top_logprobs_idx"] == [[ord("b"), ord("c")]]
    assert chunks[1]["output_token_ids_logprobs_val"] == [[logprob_of(5, 4)]]


def test_columns_of_a_batch_where_one_asked_for_logprobs(worker: PlainWorker, grouped: bool):
    requests = [worker.request("one", "abc", return_logprob=True), worker.request("two", "xyz")]
    worker.send("BatchTokenizedGenerateReqInput", batch=requests)
    chunks = worker.collect("one", "two")
    assert chunks["two"][0]["output_token_logprobs_val"] == []
    assert len(chunks["one"][0]["output_token_logprobs_val"]) == 1


def test_an_invalid_grammar_is_an_abort(worker: PlainWorker, codec: str):
    _, reason, chunks = answer(worker, "abc", json_schema="invalid")
    assert (reason["type"], reason["status_code"], reason["err_type"]) == ("abort", 400, "BadRequestError")
    assert isinstance(reason["status_code"], HTTPStatus if codec == "pickle" else int)
    assert chunks[-1]["prompt_tokens"] == 1


def test_an_unknown_session_is_an_abort(worker: PlainWorker):
    worker.generate("r", "abc", session_params=make("SessionParams", id="nowhere"))
    assert "nowhere does not exist" in worker.collect("r")["r"][-1]["finished_reasons"]["message"]


def test_control_messages_are_answered(worker: PlainWorker):
    assert worker.ask("FlushCacheReqInput").success is True
    assert worker.ask("GetInternalStateReq").internal_state["model_path"] == "simulated-model"
    assert worker.ask("OpenSessionReqInput", capacity_of_str_len=9, session_id="s").success is True
    assert worker.ask("ProfileReq").success is True
    assert worker.ask("UpdateWeightFromDiskReqInput", model_path="m", load_format="auto", weight_version="v2").success
    text, _, chunks = answer(worker, "abc")
    assert text == "[m]abcab"
    assert chunks[-1]["weight_versions"][0].version == "v2"


def test_abort_goes_by_prefix(make_engine: Callable[..., SimulatedEngine]):
    engine = make_engine(step_seconds=0.01)
    with PlainWorker(engine.contract) as worker:
        for rid in ("ab", "abc", "b"):
            worker.generate(rid, "x", max_new_tokens=40)
        assert engine.wait_for(lambda: engine.steps > 0 and engine.running() == 3)
        assert engine.wait_for(lambda: not engine.waiting())
        worker.send("AbortReq", rid="ab")
        chunks = worker.collect("ab", "abc", "b")
    assert [chunks[rid][-1]["finished_reasons"]["type"] for rid in ("ab", "abc", "b")] == ["abort", "abort", "length"]
    assert sorted(engine.aborted) == ["ab", "abc"]


def test_a_full_queue_is_an_abort_through_the_router(make_engine: Callable[..., SimulatedEngine]):
    engine = make_engine(max_running=1, max_queued=1, step_seconds=0.005)
    with PlainWorker(engine.contract) as worker:
        rids = [f"r{i}" for i in range(5)]
        for rid in rids:
            worker.generate(rid, "abc")
        ends = [chunks[-1]["finished_reasons"] for chunks in worker.collect(*rids).values()]
    assert [end["type"] for end in ends].count("length") in (1, 2)
    assert all(end["status_code"] == 503 for end in ends if end["type"] == "abort")
    assert engine.violations == []


def test_a_waiting_request_is_aborted_by_an_echo(make_engine: Callable[..., SimulatedEngine]):
    engine = make_engine()
    engine.set_faults(stall=True)
    with PlainWorker(engine.contract) as worker:
        worker.generate("r", "abc")
        worker.send("AbortReq", rid="r")
        message = worker.receive()
    assert (message.__struct_name__, message.rid, message.finished_reason) == ("AbortReq", "r", None)


def test_health_checks(make_engine: Callable[..., SimulatedEngine]):
    engine = make_engine(step_seconds=0.02)
    with PlainWorker(engine.contract, "busy") as busy, PlainWorker(engine.contract, "asks") as asks:
        asks.generate("HEALTH_CHECK_1", [0], max_new_tokens=1)
        assert asks.receive().__struct_name__ == "BatchStrOutput"
        busy.generate("r", "abc", max_new_tokens=20)
        busy.receive()
        asks.generate("HEALTH_CHECK_2", [0], max_new_tokens=1)
        assert asks.receive().__struct_name__ == "HealthCheckOutput"
        busy.collect("r")


def test_pause_is_broadcast_to_registered_workers(make_engine: Callable[..., SimulatedEngine]):
    engine = make_engine()
    with PlainWorker(engine.contract, "one") as one, PlainWorker(engine.contract, "two") as two:
        for worker in (one, two):
            worker.send("TokenizerWorkerRegistrationReq", worker_ipc_name=worker.endpoint)
        assert engine.wait_for(lambda: len(engine.registered) == 2)
        one.send("PauseGenerationReqInput", http_worker_ipc=one.endpoint, mode="in_place")
        assert [worker.receive().is_pause for worker in (one, two)] == [True, True]
        one.generate("r", "abc", max_new_tokens=2)
        two.send("ContinueGenerationReqInput", http_worker_ipc=two.endpoint)
        assert one.receive().is_pause is False
        assert text_of(one.collect("r")["r"]) == "ab"


def test_a_deferred_flush_waits_for_idle(make_engine: Callable[..., SimulatedEngine]):
    engine = make_engine(step_seconds=0.01)
    with PlainWorker(engine.contract, "one") as one, PlainWorker(engine.contract, "two") as two:
        one.generate("r", "abc", max_new_tokens=20)
        one.receive()
        assert two.ask("FlushCacheReqInput").success is False
        assert two.ask("FlushCacheReqInput", timeout_s=5.0).success is True
        assert engine.running() == 0


@pytest.mark.parametrize(
    ("breach", "found"),
    [
        ({"stop_strs": None}, "stop_strs"),
        ({"is_normalized": False}, "is_normalized"),
        ({"http_worker_ipc": None}, "http_worker_ipc"),
        ({"input_ids": [1, 2]}, "input_ids"),
        ({"stream": 1}, "stream"),
        ({"temperature": "1"}, "temperature"),
        ({"rid": ""}, "rid"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_pickle_lets_through_is_a_violation(make_engine: Callable[..., SimulatedEngine], breach, found):
    engine = make_engine()
    engine.set_faults(stall=True)
    with PlainWorker(engine.contract) as worker:
        request = worker.request("r", "abc")
        target = request if breach.keys() & vars(request).keys() else request.sampling_params
        vars(target).update(breach)
        worker.send_frame(worker.codec.encode(request))
        assert engine.wait_for(lambda: bool(engine.violations))
    assert found in " ".join(engine.violations)


def test_a_rid_seen_twice_is_a_violation(make_engine: Callable[..., SimulatedEngine]):
    engine = make_engine()
    with PlainWorker(engine.contract) as worker:
        for _ in range(2):
            worker.generate("same", "abc", max_new_tokens=1)
            worker.collect("same")
    assert engine.violations == ["rid same was used before"]


@pytest.mark.parametrize("frame", [b"", b"garbage", b"\x80\x05N.", b"\xc1"], ids=["empty", "text", "None", "reserved"])
def test_the_router_dies_of_an_undecodable_frame(make_engine: Callable[..., SimulatedEngine], codec, frame):
    engine = make_engine(codec=codec)
    with PlainWorker(engine.contract) as worker:
        worker.send_frame(frame)
        assert engine.wait_for(lambda: not engine.router_alive())
    assert "the router died" in engine.violations[0]


def test_a_message_with_a_missing_field_ends_the_router(make_engine: Callable[..., SimulatedEngine], codec):
    engine = make_engine(codec=codec)
    with PlainWorker(engine.contract) as worker:
        request = worker.request("r", "abc")
        if codec == "pickle":
            del vars(request)["stream"]
            frame = worker.codec.encode(request)
        else:
            frame = b"\x92\xb9TokenizedGenerateReqInput\xa1r"
        worker.send_frame(frame)
        assert engine.wait_for(lambda: not engine.router_alive())


def test_a_script_of_fixed_text(make_engine: Callable[..., SimulatedEngine]):
    engine = make_engine(script=fixed_text("fixed"))
    with PlainWorker(engine.contract) as worker:
        worker.generate("r", "abc", max_new_tokens=50)
        chunks = worker.collect("r")["r"]
    assert text_of(chunks) == "fixed"
    assert chunks[-1]["finished_reasons"]["matched"] == engine.tokenizer.eos_token_id


def test_a_crash_after_steps_calls_back(make_engine: Callable[..., SimulatedEngine]):
    engine = make_engine()
    reasons: list[str] = []
    died = threading.Event()
    engine.on_death(lambda reason: (reasons.append(reason), died.set()))
    engine.set_faults(crash_after_steps=3)
    with PlainWorker(engine.contract) as worker:
        worker.generate("r", "abc", max_new_tokens=50)
        assert died.wait(5)
    assert reasons == ["simulated crash"]
    assert not engine.router_alive()


def test_dropped_outputs(make_engine: Callable[..., SimulatedEngine]):
    engine = make_engine()
    engine.set_faults(drop_outputs=2)
    with PlainWorker(engine.contract) as worker:
        worker.generate("r", "abcdef", max_new_tokens=6)
        assert text_of(worker.collect("r")["r"]) == "cdef"


def test_256_streams_at_100_steps_a_second(make_engine: Callable[..., SimulatedEngine]):
    engine = make_engine()
    engine.set_faults(stall=True)
    with PlainWorker(engine.contract) as worker:
        for i in range(256):
            worker.generate(f"r{i:03d}", "hello", max_new_tokens=100)
        assert engine.wait_for(lambda: engine.running() == 256, 10)
        before = engine.cpu_seconds()
        engine.set_faults(stall=False)
        assert engine.wait_idle(30)
        assert (engine.cpu_seconds() - before) / 100 < 0.02, "a step of 256 streams costs 20 ms or more"


def test_as_a_process(runtime_dir: Path):
    with SimulatedEngineProcess(runtime_dir, "--codec", "pickle") as engine, PlainWorker(engine.contract) as worker:
        worker.generate("r", "abc", max_new_tokens=4)
        assert text_of(worker.collect("r")["r"]) == "abca"
        assert engine.router_alive()


def test_a_killed_process_calls_back(runtime_dir: Path):
    reasons: list[str] = []
    died = threading.Event()
    with SimulatedEngineProcess(runtime_dir) as engine:
        engine.on_death(lambda reason: (reasons.append(reason), died.set()))
        engine.kill()
        assert died.wait(5)
    assert "exit code -9" in reasons[0]
