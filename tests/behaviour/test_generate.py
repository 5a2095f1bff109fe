"""/generate end to end: every kind of request, in every mode and codec."""

from __future__ import annotations

import itertools
import json

import pytest

from sglang_subgw.simulated import logprob_of
from support.stack import Stack, echoed, generate_body


def test_plain_answer(served: Stack):
    out = served.generate("abcdef", 8)
    assert out["text"] == "abcdefab"
    assert out["output_ids"] == list(b"abcdefab")
    meta = out["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (6, 8)
    assert meta["weight_version"] == "default"
    assert meta["e2e_latency"] > 0


def test_a_prompt_seen_before_is_cached(served: Stack):
    served.generate("cached prompt", 1)
    assert (
        served.generate("cached prompt", 1)["meta_info"]["cached_tokens"]
        == served.generate("cached prompt", 1)["meta_info"]["prompt_tokens"] - 1
    )


def test_stop_string_is_cut_off(served: Stack):
    out = served.generate("abcdef", 20, stop=["zz", "ef"])
    assert out["text"] == "abcd"
    assert out["meta_info"]["finish_reason"] == {"type": "stop", "matched": "ef"}


def test_stop_string_is_kept_when_asked(served: Stack):
    assert served.generate("abcdef", 20, stop="ef", no_stop_trim=True)["text"] == "abcdef"


def test_stop_token(served: Stack):
    out = served.generate("abcdef", 20, stop_token_ids=[ord("d")])
    assert out["meta_info"]["finish_reason"] == {"type": "stop", "matched": ord("d")}
    assert out["text"] == "abc"
    assert out["output_ids"] == list(b"abcd")


def test_ignore_eos_goes_on_to_the_limit(served: Stack):
    out = served.generate("abc", 5, stop_token_ids=[ord("a")], ignore_eos=True)
    assert out["text"] == "abcab"


def test_input_ids(served: Stack):
    assert served.generate(input_ids=list(b"xyz"), max_new_tokens=4)["text"] == "xyzx"


def test_no_limit_ends_by_itself(served: Stack):
    out = served.generate("to the end", None)
    assert out["text"] == "to the end"
    assert out["meta_info"]["finish_reason"]["type"] == "stop"


def test_no_new_tokens(served: Stack):
    out = served.generate("abc", 0)
    assert out["text"] == ""
    assert out["meta_info"]["completion_tokens"] == 0


def test_batch_keeps_its_order(served: Stack):
    prompts = [f"p{i:02d}-" for i in range(12)]
    outs = served.generate(prompts, 9)
    assert [out["text"] for out in outs] == [echoed(prompt, 9) for prompt in prompts]
    assert len({out["meta_info"]["id"] for out in outs}) == 12


def test_batch_with_parameters_of_each(served: Stack):
    body = {"text": ["abc", "xyz"], "sampling_params": [{"max_new_tokens": 2}, {"max_new_tokens": 5}]}
    assert [out["text"] for out in served.post("/generate", body).json()] == ["ab", "xyzxy"]


def test_n_samples_of_a_batch_are_prompt_major(served: Stack):
    outs = served.generate(["abc", "xyz"], 3, n=2)
    assert [out["text"] for out in outs] == ["abc", "abc", "xyz", "xyz"]


def test_output_logprobs(served: Stack):
    meta = served.generate("abcd", 3, return_logprob=True)["meta_info"]
    assert meta["output_token_logprobs"] == [[logprob_of(token, 4 + i), token, None] for i, token in enumerate(b"abc")]


def test_all_logprobs(served: Stack):
    asked = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2, "token_ids_logprob": [1, 2]}
    meta = served.generate("abc", 2, return_text_in_logprobs=True, **asked)["meta_info"]
    assert meta["input_token_logprobs"] == [
        [None, ord("a"), "a"],
        [logprob_of(ord("b"), 1), ord("b"), "b"],
        [logprob_of(ord("c"), 2), ord("c"), "c"],
    ]
    assert meta["input_top_logprobs"][0] is None
    assert meta["output_top_logprobs"][1] == [
        [logprob_of(ord("b"), 4), ord("b"), "b"],
        [logprob_of(ord("b"), 4) - 1 / 8, ord("c"), "c"],
    ]
    assert [[row[:2] for row in rows] for rows in meta["output_token_ids_logprobs"]] == [
        [[logprob_of(1, position), 1], [logprob_of(2, position), 2]] for position in (3, 4)
    ]


def test_json_schema(served: Stack):
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
    out = served.generate("abc", 100, json_schema=json.dumps(schema))
    assert json.loads(out["text"]) == {"name": "a", "age": 1}


@pytest.mark.parametrize("params", [{"json_schema": "invalid"}, {"regex": "("}], ids=["json_schema", "regex"])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_grammar_that_does_not_compile(served: Stack, params, stream):
    response = served.post("/generate", generate_body("abc", 4, stream=stream, **params))
    if not stream:
        assert response.status_code == 400
    assert "Failed to compile" in response.text


@pytest.mark.parametrize("prompt", ["héllo wörld", "한국어 텍스트", "a👩‍👩‍👧b😀", "ʼn\u0301 e\u0301"])
def test_unicode_stream_has_no_broken_characters(served: Stack, prompt):
    chunks = served.stream("/generate", generate_body(prompt, 2 * len(prompt.encode())))
    texts = [chunk["text"] for chunk in chunks]
    assert all((prompt * 4).startswith(text) for text in texts[:-1])
    # Only the end can be in the middle of a character.
    assert (prompt * 4).startswith(texts[-1].rstrip("\ufffd"))


def test_stream_is_cumulative(served: Stack):
    chunks = served.stream("/generate", generate_body("abcdef", 9))
    texts = [chunk["text"] for chunk in chunks]
    assert texts[-1] == "abcdefabc"
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert [c["meta_info"]["finish_reason"] is None for c in chunks] == [True] * (len(chunks) - 1) + [False]
    assert chunks[-1]["output_ids"] == list(b"abcdefabc")


def test_stream_of_a_stop_string_never_shows_it(served: Stack):
    chunks = served.stream("/generate", generate_body("abcdefgh", 30, stop="defg"))
    assert chunks[-1]["text"] == "abc"
    assert all("d" not in chunk["text"] for chunk in chunks)


def test_stream_of_a_batch_has_indices(served: Stack):
    prompts = ["abc", "klm", "xyz"]
    last = {}
    ends = []
    for chunk in served.stream("/generate", generate_body(prompts, 7)):
        last[chunk["index"]] = chunk["text"]
        if chunk["meta_info"]["finish_reason"] is not None:
            ends.append(chunk["index"])
    assert last == {i: echoed(prompt, 7) for i, prompt in enumerate(prompts)}
    assert sorted(ends) == [0, 1, 2]


def test_stream_with_logprobs_is_complete(served: Stack):
    chunks = served.stream("/generate", generate_body("abcd", 6, return_logprob=True))
    tokens = [row[1] for row in chunks[-1]["meta_info"]["output_token_logprobs"]]
    assert tokens == list(b"abcdab")


def test_a_long_prompt(served: Stack):
    prompt = "0123456789" * 380
    out = served.generate(prompt, 20)
    assert out["text"] == prompt[:20]
    assert out["meta_info"]["prompt_tokens"] == 3800


def test_every_shard_answers_the_same(served: Stack):
    with served.client_per_shard() as clients:
        texts = [one.post("/generate", json=generate_body("same", 11)).json()["text"] for one in clients]
    assert texts == [echoed("same", 11)] * served.shard_count
