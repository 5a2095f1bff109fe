"""The requests whose answers must equal those of SGLang's own server: name, path, body."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """One request of the comparison."""

    name: str
    path: str
    body: dict[str, Any]


_LONG = "A function takes arguments and returns a value. " * 30
_SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2, 3]}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
_GREEDY = {"temperature": 0, "max_new_tokens": 16}
_HELLO = [{"role": "user", "content": "Hello, what does this function return?"}]
_TURNS = [
    {"role": "system", "content": "You answer in one line."},
    {"role": "user", "content": "What is a list?"},
    {"role": "assistant", "content": "A list is a sequence."},
    {"role": "user", "content": "And a tuple?"},
]


def _generate(name: str, params: dict[str, Any] | None = None, **body: Any) -> Asked:
    return Asked(f"generate {name}", "/generate", {"sampling_params": {**_GREEDY, **(params or {})}, **body})


def _completion(name: str, **body: Any) -> Asked:
    body = {"model": "MODEL", "temperature": 0, **body}
    return Asked(f"completions {name}", "/v1/completions", body)


def _chat(name: str, **body: Any) -> Asked:
    body = {"messages": _HELLO, "max_tokens": 12, **body}
    return Asked(f"chat {name}", "/v1/chat/completions", {"model": "MODEL", "temperature": 0, **body})


REQUESTS = (
    _generate("plain", text="The function returns"),
    _generate("the same again, from the prefix cache", text="The function returns"),
    _generate("default length", {"max_new_tokens": None}, text="Return"),
    _generate("stop string", {"stop": ["e "], "max_new_tokens": 40}, text="The function returns"),
    _generate("several stop strings", {"stop": ["zzzz", " the", "qq"], "max_new_tokens": 40}, text="If the"),
    _generate("stop string kept", {"stop": "e ", "no_stop_trim": True, "max_new_tokens": 40}, text="The function"),
    _generate("stop token ids", {"stop_token_ids": list(range(40, 120)), "max_new_tokens": 40}, text="Return the"),
    _generate("stop regex", {"stop_regex": "[aeiou][st]", "max_new_tokens": 40}, text="The class"),
    _generate("ignore eos", {"ignore_eos": True, "max_new_tokens": 64}, text="Return"),
    _generate("min new tokens", {"min_new_tokens": 8, "max_new_tokens": 20}, text="Return."),
    _generate("logprobs", text="The function", return_logprob=True),
    _generate("logprobs from the start", text="The function", return_logprob=True, logprob_start_len=0),
    _generate("top logprobs", text="The function", return_logprob=True, top_logprobs_num=3, logprob_start_len=0),
    _generate("logprobs with text", text="The", return_logprob=True, top_logprobs_num=2, return_text_in_logprobs=True),
    _generate("logprobs of chosen ids", text="The function", return_logprob=True, token_ids_logprob=[5, 77, 300]),
    _generate("n=3", {"n": 3}, text="The function returns"),
    _generate("json schema", {"json_schema": json.dumps(_SCHEMA), "max_new_tokens": 40}, text="x"),
    _generate("regex", {"regex": "(yes|no)[0-9]{3}", "max_new_tokens": 20}, text="Answer: "),
    _generate("ebnf", {"ebnf": 'root ::= "a" "b"+ "c"', "max_new_tokens": 20}, text="Answer: "),
    _generate("grammar that is none", {"regex": "(", "max_new_tokens": 20}, text="Answer: "),
    _generate("input ids", input_ids=[10, 20, 30, 40, 50, 60]),
    _generate("batch", text=["The function", "Return the", "If a list"]),
    _generate("batch of input ids", input_ids=[[10, 20, 30], [40, 50]]),
    _generate(
        "batch with its own parameters",
        text=["The", "A"],
        sampling_params=[_GREEDY, {**_GREEDY, "max_new_tokens": 3}],
    ),
    _generate("long prompt", text=_LONG),
    _generate("unicode prompt", text="naïve café — 数学 🙂 Ελλάδα"),
    _generate("penalties", {"frequency_penalty": 0.7, "presence_penalty": 0.3, "repetition_penalty": 1.2}, text="The"),
    _generate("logit bias", {"logit_bias": {"65": 50.0}}, text="The function"),
    _generate("seeded sampling", {"temperature": 0.9, "top_p": 0.9, "top_k": 1, "sampling_seed": 7}, text="The"),
    _generate("stream, cumulative", text="The function returns", stream=True),
    _generate("stream with logprobs", text="The function", stream=True, return_logprob=True, top_logprobs_num=2),
    _generate("stream that a stop string ends", {"stop": ["e "], "max_new_tokens": 40}, text="The", stream=True),
    _generate("stream of unicode", text="naïve café — 数学 🙂", stream=True),
    _completion("plain", prompt="The function"),
    _completion("long enough to end", prompt="Return the value.", max_tokens=100),
    _completion("logprobs", prompt="The function", logprobs=2, max_tokens=8),
    _completion("echo", prompt="The function", echo=True, max_tokens=4),
    _completion("echo with logprobs", prompt="The function", echo=True, logprobs=1, max_tokens=4),
    _completion("n=2", prompt="The function", n=2),
    _completion("several prompts", prompt=["The function", "Return"]),
    _completion("token ids", prompt=[10, 20, 30, 40]),
    _completion("several lists of token ids", prompt=[[10, 20, 30], [40, 50]]),
    _completion("stop", prompt="The function", stop=["e "], max_tokens=40),
    _completion(
        "suffix of parameters",
        prompt="The",
        top_p=0.5,
        frequency_penalty=0.5,
        seed=11,
        top_k=1,
        temperature=0.7,
        max_tokens=8,
    ),
    _completion("stream", prompt="The function", stream=True),
    _completion("stream with usage", prompt="The", stream=True, stream_options={"include_usage": True}),
    _completion("stream with logprobs", prompt="The", stream=True, logprobs=2, max_tokens=8),
    _completion("stream n=2", prompt="The function", stream=True, n=2, max_tokens=4),
    _chat("plain"),
    _chat("system and several turns", messages=_TURNS),
    _chat("content parts", messages=[{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]),
    _chat("unicode", messages=[{"role": "user", "content": "数学 🙂 é"}]),
    _chat("logprobs", logprobs=True, top_logprobs=3),
    _chat("logprobs without top", logprobs=True),
    _chat("n=2", n=2),
    _chat("stop", stop=["e "], max_tokens=40),
    _chat("max_completion_tokens", max_completion_tokens=5, max_tokens=None),
    _chat(
        "continues the last message",
        messages=[*_HELLO, {"role": "assistant", "content": "It returns"}],
        continue_final_message=True,
    ),
    _chat(
        "json schema",
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": _SCHEMA}},
    ),
    _chat("json object", max_tokens=30, response_format={"type": "json_object"}),
    _chat("regex", regex="(yes|no)", max_tokens=30),
    _chat("seed", seed=5, temperature=0.8, top_k=1),
    _chat("stream", stream=True),
    _chat("stream with usage", stream=True, stream_options={"include_usage": True}),
    _chat("stream with logprobs", stream=True, logprobs=True, top_logprobs=2),
    _chat("stream n=2", stream=True, n=2, max_tokens=4),
    _chat("stream that a stop string ends", stream=True, stop=["e "], max_tokens=40),
    _chat("stream of several turns", stream=True, messages=_TURNS),
)
"""Sent one after the other: which requests share a batch changes the last bits of a CPU's sums.

None is left to chance: SGLang heeds a seed in its deterministic mode only.
"""
