"""What a shard's embedding has of images and tensors arrives in the engine's process as it was."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from sglang_subgw.engine.services.embedding_calls import _given
from sglang_subgw.engine_api.embedding import EmbeddingCalls
from sglang_subgw.worker.worker import TokenizerWorker

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(120)]


class Calls(EmbeddingCalls):
    """Keeps what is asked of the engine's process."""

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, Any], bytes]] = []
        super().__init__(cast("TokenizerWorker", None))

    @property
    def coordination(self) -> Any:
        return self

    async def call(self, method: str, arguments: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        self.asked.append((arguments, blob))
        return {}, b""


def test_images_of_bytes_and_tensors_together() -> None:
    torch = pytest.importorskip("torch")
    calls = Calls()
    overrides = [[torch.arange(3, dtype=torch.bfloat16), [1.5, 2.5]]]
    fields = {"text": "a", "image_data": [b"one", "two", b""], "embed_overrides": overrides, "rid": None}
    asyncio.run(calls.embed_there(fields))
    [(arguments, blob)] = calls.asked
    given = _given(arguments, blob)
    [[first, second]] = given.pop("embed_overrides")
    assert torch.equal(first, overrides[0][0])
    assert second.tolist() == [1.5, 2.5]
    assert given == {"text": "a", "image_data": [b"one", "two", b""]}
