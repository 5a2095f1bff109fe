"""Embeddings and scores by SGLang's own worker: images, and tensors that take the place of tokens."""

from __future__ import annotations

import asyncio
from typing import Any

from ...coordination.carried_bytes import with_bytes
from ..engine_loop import EngineLoop


class CoordinatorEmbeddings:
    """The calls of one sglang.Engine's coordinator that answer with numbers."""

    def __init__(self, engine: Any, loop: EngineLoop) -> None:
        self._manager = engine.tokenizer_manager
        self._templates = engine.template_manager
        self._loop = loop

    async def encode(self, arguments: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        """The answers to an EmbeddingReqInput of these fields."""
        from sglang.srt.managers.io_struct import EmbeddingReqInput

        request = EmbeddingReqInput(**await asyncio.to_thread(_given, arguments, blob))
        answer = await self._loop.call(anext(self._manager.generate_request(request, None)))
        return await asyncio.to_thread(_plain, answer), b""

    async def embed_parts(self, arguments: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        """The answers to an OpenAI request of these fields, its prompts made as SGLang's server makes them."""
        from sglang.srt.entrypoints.openai.protocol import EmbeddingRequest
        from sglang.srt.entrypoints.openai.serving_embedding import OpenAIServingEmbedding

        serving = OpenAIServingEmbedding(self._manager, self._templates)
        request, _ = await asyncio.to_thread(serving._convert_to_internal_request, EmbeddingRequest(**arguments))
        answer = await self._loop.call(anext(self._manager.generate_request(request, None)))
        return await asyncio.to_thread(_plain, answer), b""

    async def score(self, arguments: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        """The fields of a ScoreResult."""
        import torch

        given = await asyncio.to_thread(_given, arguments, blob)
        if (stacks := given.get("stacked_query_item_embed_overrides")) is not None:
            given["stacked_query_item_embed_overrides"] = [
                torch.stack(stack) if isinstance(stack, list) else stack for stack in stacks
            ]
        result = await self._loop.call(self._manager.score_request(**given))
        fields = ("scores", "prompt_tokens", "pooled_hidden_states", "token_logprobs")
        named = {name: getattr(result, name, None) for name in fields}
        return await asyncio.to_thread(_plain, named), b""


def _given(arguments: dict[str, Any], blob: bytes) -> dict[str, Any]:
    """The arguments with tensors and bytes in their places, as the shard took them out (`carried`, `carried_bytes`)."""
    tensors = _tensors(arguments["tensors"], blob)
    given = with_bytes(arguments["given"], blob[sum(row["bytes"] for row in arguments["tensors"]) :])

    def placed(value: Any) -> Any:
        if isinstance(value, dict):
            return tensors[value["tensor"]]
        return [placed(item) for item in value] if isinstance(value, list) else value

    return {name: placed(value) if name.endswith("embed_overrides") else value for name, value in given.items()}


def _tensors(rows: list[dict[str, Any]], blob: bytes) -> list[Any]:
    import torch

    tensors, start = [], 0
    for row in rows:
        data = bytearray(blob[start : start + row["bytes"]])
        start += row["bytes"]
        tensors.append(torch.frombuffer(data, dtype=getattr(torch, row["dtype"])).reshape(row["shape"]))
    return tensors


def _plain(value: Any) -> Any:
    """Tensors as nested lists, at any depth."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value
