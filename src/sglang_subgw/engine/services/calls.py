"""What the engine's own process does for shards: what needs torch, the schedulers' RPC socket, SGLang's own worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from ...coordination.carried_bytes import with_bytes
from ...coordination.server import Call
from ...errors import EngineUnavailable, RequestRejected
from ..engine_loop import EngineLoop
from ..patches.stock_worker import adapters_of
from .embedding_calls import CoordinatorEmbeddings


class CoordinatorCalls:
    """The calls and streams of one sglang.Engine's coordinator."""

    def __init__(self, engine: Any, loop: EngineLoop) -> None:
        self._engine = engine
        self._loop = loop
        embedding = CoordinatorEmbeddings(engine, loop)
        self.calls: dict[str, Call] = {
            "collective_rpc": self._collective_rpc,
            "serialize_tensors": self._serialize_tensors,
            "generate": self._generate,
            "encode": embedding.encode,
            "embed_parts": embedding.embed_parts,
            "score": embedding.score,
        }
        self.streams = {"generate": self._generate_stream}

    def state(self) -> dict[str, Any]:
        """What the workers agree on at the start: whether it is paused, and the adapters that SGLang has."""
        manager = self._engine.tokenizer_manager
        return {"paused": bool(manager.is_pause), **adapters_of(manager)}

    def _collective_rpc(self, arguments: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        method = arguments["method"]
        try:
            self._engine.collective_rpc(method, **(arguments["parameters"] or {}))
        except AssertionError as exc:
            raise EngineUnavailable(f"collective_rpc {method!r} failed: {exc}") from None
        return None, b""

    def _serialize_tensors(self, arguments: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        import torch
        from sglang.srt.utils import MultiprocessingSerializer

        named, start = [], 0
        for row in arguments["tensors"]:
            dtype = getattr(torch, row["dtype"], None)
            if not isinstance(dtype, torch.dtype):
                raise RequestRejected(f"{row['name']!r} has the dtype {row['dtype']!r}, which torch does not know.")
            data = bytearray(blob[start : start + row["bytes"]])
            start += row["bytes"]
            tensor = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
            named.append((row["name"], tensor.reshape(row["shape"])))
        ranks = int(self._engine.server_args.tp_size)
        tensors = dict(named) if arguments["as_dict"] else named
        payloads = [MultiprocessingSerializer.serialize(tensors) for _ in range(ranks)]
        return [len(payload) for payload in payloads], b"".join(payloads)

    async def _generate(self, arguments: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        given = with_bytes(arguments, blob)
        return await self._loop.call(self._engine.async_generate(**given)), b""

    async def _generate_stream(self, arguments: dict[str, Any], blob: bytes) -> AsyncIterator[Any]:
        """Left early, it is closed where it comes from, which aborts it."""
        given = with_bytes(arguments, blob)
        async for item in self._loop.stream(await self._loop.call(self._engine.async_generate(**given))):
            yield item
