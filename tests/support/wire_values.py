"""Values for messages that a shard sends, good ones and bad ones."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from sglang_subgw.contract import WireFacts
from sglang_subgw.simulated.wire.schema import field_lists, modules
from sglang_subgw.wire.message import Struct

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
SCALAR = st.none() | st.booleans() | INT64 | FLOAT | TEXT

SAMPLING = st.fixed_dictionaries(
    {
        "stop_strs": st.lists(TEXT, max_size=4),
        "stop_regex_strs": st.lists(TEXT, max_size=2),
        "is_normalized": st.just(True),
    },
    optional={
        "max_new_tokens": st.none() | INT64,
        "stop_token_ids": st.sets(INT64, max_size=5),
        "temperature": FLOAT,
        "top_p": FLOAT,
        "top_k": INT64,
        "min_new_tokens": INT64,
        "json_schema": st.none() | TEXT,
        "ignore_eos": st.booleans(),
        "logit_bias": st.dictionaries(TEXT, FLOAT, max_size=3),
        "sampling_seed": st.none() | INT64,
        "custom_params": st.dictionaries(
            TEXT, SCALAR | st.lists(SCALAR, max_size=3) | st.dictionaries(TEXT, SCALAR, max_size=3), max_size=3
        ),
        "stop_str_max_len": INT64,
        "stop_regex_max_len": INT64,
    },
).map(lambda fields: Struct("SamplingParams", fields))

REQUEST = st.fixed_dictionaries(
    {
        "rid": TEXT,
        "http_worker_ipc": TEXT,
        "input_text": st.none() | TEXT,
        "input_ids": st.lists(INT64, max_size=30).map(lambda ids: array("q", ids)),
        "input_embeds": st.none(),
        "mm_inputs": st.none(),
        "token_type_ids": st.none(),
        "sampling_params": SAMPLING,
        "return_logprob": st.booleans(),
        "logprob_start_len": INT64,
        "top_logprobs_num": INT64,
        "token_ids_logprob": st.none() | st.lists(INT64, max_size=4),
        "stream": st.booleans(),
    },
    optional={
        "return_hidden_states": st.booleans() | st.just("last"),
        "session_params": st.fixed_dictionaries(
            {}, optional={"id": TEXT, "offset": INT64, "replace": st.booleans()}
        ).map(lambda fields: Struct("SessionParams", fields)),
        "bootstrap_room": st.none() | INT64,
        "priority": st.none() | INT64,
        "cache_salt": st.none() | TEXT,
    },
)


def request_fields(**changes: Any) -> dict[str, Any]:
    """The fields of a good request, some of them replaced."""
    sampling = Struct("SamplingParams", {"stop_strs": [], "stop_regex_strs": [], "is_normalized": True})
    fields: dict[str, Any] = {
        "rid": "r",
        "http_worker_ipc": "ipc:///run/w",
        "input_text": None,
        "input_ids": array("q", [1, 2, 3]),
        "input_embeds": None,
        "mm_inputs": None,
        "token_type_ids": None,
        "sampling_params": sampling,
        "return_logprob": False,
        "logprob_start_len": -1,
        "top_logprobs_num": 0,
        "token_ids_logprob": None,
        "stream": True,
    }
    return fields | changes


def sampling(**changes: Any) -> Struct:
    """Good sampling parameters, some of them replaced."""
    return Struct("SamplingParams", {"stop_strs": [], "stop_regex_strs": [], "is_normalized": True, **changes})


def wire_facts(codec: str, runtime_dir: Path = Path("/nowhere")) -> WireFacts:
    """The facts of an engine of the tests' SGLang version."""
    return WireFacts(
        worker_endpoint=f"ipc://{runtime_dir}/router",
        runtime_dir=str(runtime_dir),
        codec=codec,
        schema=field_lists(),
        modules=modules(),
    )
