"""Embeddings: SGLang's Engine.encode, async_encode and rerank."""

from __future__ import annotations

from typing import Any, Final

from ..coordination.carried_bytes import without_bytes
from ..worker.requests.request import EmbeddingRequest
from .base import EngineCalls, Outputs
from .blocking import blocking
from .carried_tensors import Carrier

ENGINE_SIDE: Final = ("image_data", "audio_data", "video_data", "embed_overrides")
"""Parameters that SGLang's own worker must see to: a processor of images, tensors."""


class EmbeddingCalls(EngineCalls):
    """What asks for vectors, and for the scores of a classifier, a reward model or a cross encoder."""

    async def async_encode(
        self,
        prompt: str | list[str] | list[dict[str, Any]] | list[list[dict[str, Any]]],
        image_data: Any = None,
        audio_data: Any = None,
        video_data: Any = None,
        dimensions: int | None = None,
        lora_path: str | list[str | None] | None = None,
        embed_override_token_id: int | None = None,
        embed_overrides: list[Any] | None = None,
        external_trace_header: dict[str, Any] | None = None,
        rid: str | list[str] | None = None,
    ) -> Outputs:
        """A dict with `embedding` and `meta_info`, or a list of them for a batch.

        `embed_overrides` are tensors, arrays or lists of numbers. Raises RequestRejected for what the engine must not
        see, EngineRejected and EngineUnavailable for its answers.
        """
        given = {name: value for name, value in locals().items() if name != "self"}
        given["text"] = given.pop("prompt")
        traced = external_trace_header is not None and bool(self.contract.server_args.get("enable_trace"))
        if traced or any(given[name] is not None for name in ENGINE_SIDE):
            return await self.embed_there(given)
        for name in (*ENGINE_SIDE, "embed_override_token_id", "external_trace_header"):
            del given[name]
        return await self.embed(EmbeddingRequest(**given))

    encode = blocking(async_encode)

    async def async_rerank(self, prompt: list[list[str]]) -> Outputs:
        """A cross encoder's answer to each pair of texts: its `embedding` is the score."""
        return await self.embed(EmbeddingRequest(text=prompt, is_cross_encoder_request=True))

    rerank = blocking(async_rerank)

    async def embed(self, request: EmbeddingRequest) -> Outputs:
        """What `async_encode` and `async_rerank` answer, for a request with any of its fields."""
        return await self._outputs(await self.worker.submit(request))

    async def embed_there(self, fields: dict[str, Any]) -> Outputs:
        """The same by SGLang's own worker in the engine's process, for fields of SGLang's EmbeddingReqInput."""
        given = {name: value for name, value in fields.items() if value is not None}
        if isinstance(rid := given.get("rid"), str) and isinstance(texts := given.get("text"), list):
            # SGLang's own worker wants one for each.
            given["rid"] = [f"{rid}_{i}" for i in range(len(texts))]
        carrier = Carrier()
        if "embed_overrides" in given:
            given["embed_overrides"] = carrier.put("embed_overrides", given["embed_overrides"])
        outputs: Outputs
        given, data = without_bytes(given)
        outputs, _ = await self.coordination.call("encode", carrier.arguments(given), carrier.blob + data)
        return outputs

    async def embed_parts(self, fields: dict[str, Any]) -> Outputs:
        """The same for fields of OpenAI's embedding request whose input has parts: texts, images, videos."""
        outputs: Outputs
        outputs, _ = await self.coordination.call("embed_parts", fields)
        return outputs
