"""/generate: SGLang's output, error and stream forms."""

from __future__ import annotations

import asyncio

from sglang_subgw.errors import EngineRejected, EngineUnavailable, RequestRejected
from sglang_subgw.worker.call import Call
from support.http_fakes import STOP, FakeEngine, ask, client_of, contract, emit, events_of, saying


def test_a_single_prompt_is_answered_with_one_object() -> None:
    answer = ask("/generate", {"text": "Hi", "sampling_params": {"temperature": 0}})
    assert answer.status_code == 200
    assert answer.headers["x-sglang-subgw-shard"] == "2"
    out = answer.json()
    assert out["text"] == "Hello"
    assert out["output_ids"] == [ord(char) for char in "Hello"]
    assert out["meta_info"]["finish_reason"] == STOP
    assert out["meta_info"]["completion_tokens"] == 5


def test_put_is_as_good_as_post() -> None:
    assert ask("/generate", {"input_ids": [1, 2]}, method="PUT").json()["text"] == "Hello"


def test_a_batch_is_answered_with_a_list_in_order() -> None:
    outs = ask("/generate", {"text": ["a", "b"], "rid": ["x", "y"]}).json()
    assert [out["text"] for out in outs] == ["Hello", "Hello"]
    assert ask("/generate", {"text": ["a"]}).json()[0]["text"] == "Hello"
    assert len(ask("/generate", {"text": "a", "sampling_params": {"n": 3}}).json()) == 3


def test_a_stream_is_cumulative_by_default() -> None:
    *chunks, done = events_of(ask("/generate", {"text": "Hi", "stream": True}))
    assert done == "[DONE]"
    assert [chunk["text"] for chunk in chunks] == ["Hel", "Hello"]
    assert [chunk["meta_info"]["finish_reason"] for chunk in chunks] == [None, STOP]
    assert "index" not in chunks[0]


def test_a_stream_is_incremental_if_the_engine_is() -> None:
    def engine() -> FakeEngine:
        return FakeEngine(contract(incremental_streaming_output=True))

    body = {"text": "Hi", "stream": True, "return_logprob": True}
    *chunks, _ = events_of(ask("/generate", body, engine))
    assert [chunk["text"] for chunk in chunks] == ["Hel", "lo"]
    assert [len(chunk["output_ids"]) for chunk in chunks] == [3, 2]
    assert [len(chunk["meta_info"]["output_token_logprobs"]) for chunk in chunks] == [3, 2]


def test_a_streamed_batch_names_the_index() -> None:
    *chunks, _ = events_of(ask("/generate", {"text": ["a", "b"], "stream": True}))
    assert sorted(chunk["index"] for chunk in chunks if chunk["meta_info"]["finish_reason"]) == [0, 1]


def test_a_refusal_is_a_400_in_sglangs_form() -> None:
    def engine() -> FakeEngine:
        engine = FakeEngine()
        engine.refusal = RequestRejected("The input (300 tokens) is longer than the model's context length.")
        return engine

    for stream in (False, True):
        answer = ask("/generate", {"text": "a", "stream": stream}, engine)
        assert answer.status_code == 400
        assert answer.json() == {
            "error": {"message": "The input (300 tokens) is longer than the model's context length."}
        }


def test_an_abort_before_any_output_has_its_status_also_for_a_stream() -> None:
    async def script(call: Call) -> None:
        emit(call.samples[0], "", {"type": "abort", "message": "bad grammar", "status_code": 400})

    for stream in (False, True):
        answer = ask("/generate", {"text": "a", "stream": stream}, lambda: FakeEngine(script=script))
        assert (answer.status_code, answer.json()) == (400, {"error": {"message": "bad grammar"}})


def test_an_abort_of_the_engine_in_a_stream_is_its_last_output() -> None:
    abort = {"type": "abort", "message": "out of memory", "status_code": 503}
    script = saying("Hel", "", finish=abort)
    first, last, done = events_of(ask("/generate", {"text": "a", "stream": True}, lambda: FakeEngine(script=script)))
    assert (first["text"], last["meta_info"]["finish_reason"], done) == ("Hel", abort, "[DONE]")


def test_an_engine_that_dies_in_a_stream_is_an_error_event() -> None:
    async def script(call: Call) -> None:
        emit(call.samples[0], "Hel")
        for _ in range(9):
            await asyncio.sleep(0)
        call.samples[0].fail(EngineUnavailable("The engine died."))

    answer = ask("/generate", {"text": "a", "stream": True}, lambda: FakeEngine(script=script))
    assert events_of(answer)[-2:] == [
        {
            "error": {
                "message": "The engine died.",
                "type": "ServiceUnavailableError",
                "code": 503,
                "retryable": True,
            }
        },
        "[DONE]",
    ]


def test_what_the_engine_gets_is_what_was_asked() -> None:
    body = {
        "input_ids": [1, 2],
        "sampling_params": {"max_new_tokens": 3},
        "return_logprob": True,
        "top_logprobs_num": 2,
        "token_ids_logprob": [1],
        "rid": "mine",
        "priority": 3,
        "lora_path": None,
    }

    async def run() -> FakeEngine:
        engine = FakeEngine()
        async with client_of(engine) as client:
            answer = await client.post("/generate", json=body)
            assert answer.json()["meta_info"]["id"] == "mine"
        return engine

    request = asyncio.run(run()).requests[0]
    assert {name: getattr(request, name) for name in body} == body
    assert request.received_time is not None


def test_engine_rejected_keeps_the_engines_status() -> None:
    def engine() -> FakeEngine:
        engine = FakeEngine()
        engine.refusal = EngineRejected("The request queue is full.", status=503)
        return engine

    answer = ask("/generate", {"text": "a"}, engine)
    assert answer.status_code == 503
    assert answer.headers["connection"] == "close"
