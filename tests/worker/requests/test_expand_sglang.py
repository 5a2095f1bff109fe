"""Requests taken apart against SGLang's own code: the same names, the same fields."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_subgw.worker.requests.expand import expand
from sglang_subgw.worker.requests.request import GenerateRequest

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="session")
def sglang_srt() -> Any:
    """SGLang's modules that these tests compare with."""
    pytest.importorskip("sglang")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sglang.srt.managers import io_struct
    return SimpleNamespace(io_struct=io_struct)


REQUESTS: list[dict[str, Any]] = [
    {"text": "a"},
    {"text": ["a", "b"], "rid": "r", "bootstrap_room": 4},
    {"input_ids": [[1], [2]], "rid": ["x", "y"], "return_logprob": [True, False], "token_ids_logprob": [[1], [2]]},
    {"text": ["a", "b"], "token_ids_logprob": [1, 2], "top_logprobs_num": 2, "extra_key": "k", "cache_salt": ["", "s"]},
    {"input_ids": [1, 2], "sampling_params": {"temperature": 0.5}, "return_hidden_states": "last"},
    {"text": ["a", "b"], "sampling_params": [{"top_k": 1}, {"top_k": 2}], "bootstrap_host": ["h", "i"]},
]


@pytest.mark.parametrize("fields", REQUESTS, ids=str)
def test_requests_come_apart_as_in_sglang(sglang_srt: Any, fields: dict[str, Any]) -> None:
    stock = sglang_srt.io_struct.GenerateReqInput(**fields)
    stock.normalize_batch_and_arguments()
    plan = expand(GenerateRequest(**fields))
    assert plan.is_single == stock.is_single
    for number, prompt in enumerate(plan.prompts):
        one = stock if stock.is_single else stock[number]
        for name in prompt.__dataclass_fields__:
            if name != "rid" or "rid" in fields:
                assert getattr(prompt, name) == getattr(one, name), name
