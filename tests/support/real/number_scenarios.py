"""One engine's answers with numbers, its own and its shards'.

`python -m support.real.number_scenarios KIND RUNTIME_DIR MODEL_DIR ANSWERS` writes one JSON object to the file ANSWERS:
what Engine answered to each call, and each shard of each mode.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import httpx

from sglang_subgw.config import GatewayConfig, Mode
from sglang_subgw.engine.launch.launch import launch
from sglang_subgw.gateway import ShardGateway
from support.client import client_per_shard
from support.real.number_models import build

type Call = tuple[str, dict[str, Any]]
"""A method of Engine's and its keyword arguments, as JSON can carry them."""

MODES = (Mode.SUBINTERP, Mode.PROCESS, Mode.THREAD)
SHARDS = 2
TURN = 2
"""The demo tokenizer's token for <|turn|>."""
VECTOR = [0.05 * (place % 7 - 3) for place in range(128)]
LONG = "The quick brown fox jumps over the lazy dog. " * 20

ANSWERED: dict[str, list[Call]] = {
    "embedding": [
        ("encode", {"prompt": "hello"}),
        ("encode", {"prompt": ["hello"]}),
        ("encode", {"prompt": LONG}),
        ("encode", {"prompt": ["hello", "you are", LONG]}),
        ("encode", {"prompt": ["a<|turn|>b"], "embed_override_token_id": TURN, "embed_overrides": [[VECTOR]]}),
        ("rerank", {"prompt": [["a", "b"], ["a", "c d"]]}),
    ],
    "classifier": [
        ("encode", {"prompt": "hello"}),
        ("score", {"query": "a", "items": ["b", "c d"]}),
        ("score", {"query": "a", "items": "b", "apply_softmax": True, "temperature": 0.5}),
        ("score", {"query": [7], "items": [[8, 9], [10]], "item_first": True, "return_pooled_hidden_states": True}),
        ("score", {"query": [7], "items": [[5, 6, 5], [5, 5]], "score_extraction_token_id": 5}),
        (
            "score",
            {
                "query": [7],
                "items": [[5, 6, 5]],
                "score_extraction_token_id": 5,
                "apply_softmax": True,
                "return_pooled_hidden_states": True,
            },
        ),
    ],
    "cross encoder": [
        ("rerank", {"prompt": [["a", "b"]]}),
        ("rerank", {"prompt": [["what is it", "this"], ["what is it", "that is another"]]}),
        ("rerank", {"prompt": "alone"}),
        ("encode", {"prompt": "hello"}),
    ],
    "generation": [
        ("score", {"query": "The capital of France is", "items": [" Paris", " Rome"], "label_token_ids": [15, 300]}),
        ("score", {"query": "The", "items": "capital", "label_token_ids": [5, 6, 7], "apply_softmax": True}),
        ("score", {"query": [4, 5], "items": [[6], [7, 8]], "label_token_ids": [[1, 2], [3]]}),
        (
            "score",
            {
                "query": "a",
                "items": ["b", "c"],
                "label_token_ids": [1, 2],
                "apply_softmax": True,
                "temperature": 3,
                "return_token_logprobs": True,
                "item_first": True,
            },
        ),
        ("score", {"query": [7], "items": [[5, 6, 5]], "label_token_ids": [1, 2], "score_extraction_token_id": 5}),
        ("score", {"items": ["alone"], "label_token_ids": [1]}),
        ("score", {"query": "a", "items": [], "label_token_ids": [1]}),
        (
            "score",
            {
                "query": [68],
                "items": [[69]],
                "label_token_ids": [1, 2],
                "embed_override_token_id": 68,
                "query_embed_overrides": [VECTOR],
            },
        ),
    ],
}
REFUSED: dict[str, list[Call]] = {
    "embedding": [
        ("encode", {"prompt": "x" * 20000}),
        ("encode", {"prompt": "hello", "dimensions": 8}),
        ("encode", {"prompt": "hello", "lora_path": "none"}),
        ("encode", {"prompt": ["a<|turn|>b"], "embed_override_token_id": TURN, "embed_overrides": [[VECTOR, VECTOR]]}),
        ("score", {"query": "a", "items": ["b"], "label_token_ids": [1], "return_token_logprobs": True}),
    ],
    "classifier": [
        ("score", {"query": [7], "items": [[6]], "score_extraction_token_id": 5}),
        ("score", {"query": "a", "items": ["b"], "temperature": 2.0}),
    ],
    "cross encoder": [
        ("score", {"query": "a", "items": ["b"], "return_pooled_hidden_states": True}),
    ],
    "generation": [
        ("score", {"query": "a", "items": ["b"], "label_token_ids": [100000]}),
        ("score", {"query": "a", "items": ["b"], "label_token_ids": [1], "return_pooled_hidden_states": True}),
        ("encode", {"prompt": "hello"}),
    ],
}
_ENGINE = ["--device", "cpu", "--attention-backend", "torch_native", "--max-total-tokens", "20000"]
_ENGINE += ["--mem-fraction-static", "0.3", "--disable-radix-cache", "--chunked-prefill-size", "-1"]


def main(kind: str, runtime_dir: Path, model_dir: Path) -> dict[str, Any]:
    arguments = ["--model-path", str(build(kind, model_dir)), *_ENGINE]
    if kind != "generation":
        arguments.append("--is-embedding")
    calls = [*ANSWERED[kind], *REFUSED[kind]]
    out: dict[str, Any] = {"calls": calls, "answered": len(ANSWERED[kind])}
    with launch(arguments, runtime_dir=runtime_dir) as engine:
        out["engine"] = [of_engine(engine.engine, *call) for call in calls]
        for mode in MODES:
            settings = {"host": "127.0.0.1", "port": 0, "log_level": "warning", "mode": mode, "shards": SHARDS}
            config = GatewayConfig(app="support.apps.numbers:app", **settings)
            with ShardGateway(engine, config) as gateway, client_per_shard(gateway.address, SHARDS) as clients:
                out[str(mode)] = [[of_shard(client, *call) for call in calls] for client in clients]
        out["mixed"] = mixed(engine, kind)
    return out


def of_engine(engine: Any, method: str, arguments: dict[str, Any]) -> Any:
    """What Engine itself answers."""
    import torch

    given = dict(arguments)
    if (rows := given.get("embed_overrides")) is not None:
        given["embed_overrides"] = [[torch.tensor(row) for row in item] for item in rows]
    if (rows := given.get("query_embed_overrides")) is not None:
        given["query_embed_overrides"] = [torch.tensor(row) for row in rows]
    try:
        result = getattr(engine, method)(**given)
    except (ValueError, RuntimeError) as exc:
        return {"refused": str(exc)}
    if dataclasses.is_dataclass(result):
        result = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    return plain(result)


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def of_shard(client: httpx.Client, method: str, arguments: dict[str, Any]) -> list[Any]:
    """What a shard answers, by the coroutine form and by the blocking one."""
    return [client.post(f"/{name}", json=arguments).json() for name in (f"async_{method}", method)]


def mixed(engine: Any, kind: str) -> Any:
    """Pairs and plain texts in the same batches: a batch with the types of some only ends SGLang's scheduler."""
    if kind != "cross encoder":
        return None
    import asyncio

    import sglang_subgw
    from sglang_subgw.engine.attach.published import PublishedEngine

    async def run(name: str) -> list[Any]:
        async with sglang_subgw.attach(name) as attached:
            calls = [
                attached.async_encode(f"text {i}") if i % 2 else attached.async_rerank([["a question", f"answer {i}"]])
                for i in range(40)
            ]
            return [type(out).__name__ for out in await asyncio.gather(*calls)]

    with PublishedEngine(engine) as published:
        return asyncio.run(run(published.name))


if __name__ == "__main__":
    # Not to standard output, which the engine's processes share.
    Path(sys.argv[4]).write_text(json.dumps(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))))
