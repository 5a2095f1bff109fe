"""POST and PUT /v1/rerank: by a cross encoder, or by a model that is asked for a yes or a no (Qwen3-Reranker)."""

from __future__ import annotations

import math
import time
from typing import Any, Final

from ...errors import EngineRejected, RequestRejected
from ...worker.requests.request import EmbeddingRequest
from ..core.disconnect import UntilDisconnect
from ..core.exchange import Exchange
from ..core.fields import FieldTable, at_least, boolean, list_of, optional, required, string
from ..services import Services
from .models import resolve_model
from .protocol import DEFAULT_MODEL
from .reading import read_values
from .rerank_content import Content, is_multimodal, read_content, text_of, with_media
from .rerank_template import Backend, RerankTemplate

type Result = dict[str, Any]

_TOP_LOGPROBS: Final = 50
"""SGLang's: among so many of the likeliest tokens yes and no are looked for."""
_FALLBACK: Final = (9693, 2152)
"""SGLang's ids of yes and no for a vocabulary that has neither: those of Qwen3."""


def _query(value: Any, name: str) -> Content:
    if value in ("", []):
        raise RequestRejected("Query cannot be empty", param=name)
    if isinstance(value, str) and not value.strip():
        raise RequestRejected("Query cannot be empty or whitespace only", param=name)
    return read_content(value, name)


def _documents(value: Any, name: str) -> list[Content]:
    if value == []:
        raise RequestRejected("Documents cannot be empty", param=name)
    documents: list[Content] = list_of(_document)(value, name)
    return documents


def _document(value: Any, name: str) -> Content:
    if value in ("", []):
        raise RequestRejected("Each document must be a non-empty string", param=name)
    if isinstance(value, str) and not value.strip():
        raise RequestRejected("Each document cannot be empty or whitespace only", param=name)
    return read_content(value, name)


TABLE: Final = FieldTable(
    required("query", _query),
    required("documents", _documents),
    optional("instruct", string),
    optional("top_n", at_least(1)),
    optional("return_documents", boolean, True),
    optional("model", string, DEFAULT_MODEL),
)


class RerankHandler:
    """Documents by how well they answer a query, the best first."""

    def __init__(self, services: Services) -> None:
        self._engine = services.engine
        self._contract = services.contract
        self._limit = services.config.max_body_bytes
        self._template = RerankTemplate(services.contract)
        self._labels: list[int] = []

    async def __call__(self, exchange: Exchange) -> None:
        arrived = time.perf_counter()
        values = await read_values(exchange, TABLE, self._limit)
        if resolve_model(values["model"], self._contract) is not None:
            raise RequestRejected("Documents can't be ranked by a LoRA adapter.", param="model")
        backend = self._template.backend(is_multimodal(values["query"], *values["documents"]))
        if backend is not Backend.CROSS_ENCODER and not self._contract.model.is_generation:
            raise RequestRejected(
                "Detected a Qwen3 reranker, but the server is not in generation mode. "
                "Please relaunch without --is-embedding for Qwen3-Reranker models."
            )
        async with UntilDisconnect(exchange):
            if backend is Backend.CROSS_ENCODER:
                results = await self._by_pairs(values, arrived)
            elif backend is Backend.TEXT:
                results = await self._by_scores(values)
            else:
                results = [await self._by_media(values, document) for document in values["documents"]]
        await exchange.json(_ranked(results, values))

    async def _by_pairs(self, values: dict[str, Any], arrived: float) -> list[Result]:
        pairs = [[text_of(values["query"]), text_of(document)] for document in values["documents"]]
        request = EmbeddingRequest(text=pairs, is_cross_encoder_request=True, received_time=arrived)
        answers = await self._engine.embed(request)
        assert isinstance(answers, list)
        return [
            {"score": _number(answer.get("embedding"), index), "meta_info": answer["meta_info"]}
            for index, answer in enumerate(answers)
        ]

    async def _by_scores(self, values: dict[str, Any]) -> list[Result]:
        query = text_of(values["query"])
        prompts = [
            self._template.of_text(query, text_of(document), values["instruct"]) for document in values["documents"]
        ]
        result = await self._engine.async_score(query="", items=prompts, label_token_ids=await self._yes_and_no())
        return [{"score": _share(*row), "meta_info": None} for row in result.scores]

    async def _by_media(self, values: dict[str, Any], document: Content) -> Result:
        images: list[str] = []
        videos: list[str] = []
        query, part = with_media(values["query"], images, videos), with_media(document, images, videos)
        answer = await self._engine.async_generate(
            self._template.of_media(query, part, values["instruct"]),
            {"max_new_tokens": 1, "temperature": 0.0},
            image_data=images or None,
            video_data=videos or None,
            return_logprob=True,
            top_logprobs_num=_TOP_LOGPROBS,
            logprob_start_len=0,
        )
        assert isinstance(answer, dict)
        rows = answer["meta_info"].get("output_top_logprobs") or [[]]
        found = {row[1]: math.exp(row[0]) for row in rows[0] or ()}
        return {"score": _share(*(found.get(token, 0.0) for token in await self._yes_and_no())), "meta_info": None}

    async def _yes_and_no(self) -> list[int]:
        if not self._labels:
            tokenizer = self._engine.tokenizer
            rows = await tokenizer.encode_all(["yes", "no"], add_special_tokens=False)
            if all(len(row) == 1 for row in rows):
                self._labels = [row[0] for row in rows]
            else:
                found = [token for token in map(tokenizer.id_of, ("yes", "no")) if token is not None]
                self._labels = found if len(found) == 2 else list(_FALLBACK)
        return self._labels


def _ranked(results: list[Result], values: dict[str, Any]) -> list[Result]:
    """The best first, of equal ones the earlier."""
    rows = []
    for index, (result, document) in enumerate(zip(results, values["documents"], strict=True)):
        shown = {"document": document} if values["return_documents"] else {}
        rows.append({"score": result["score"], **shown, "index": index, "meta_info": result["meta_info"]})
    rows.sort(key=lambda row: -row["score"])
    return rows[: values["top_n"]]


def _number(embedding: Any, index: int) -> float:
    value = embedding[0] if isinstance(embedding, list) and embedding else embedding
    if not isinstance(value, int | float):
        raise EngineRejected(
            f"Invalid embedding score for rerank at index {index}: this model gives no score.",
            status=400,
            type="BadRequestError",
        )
    return float(value)


def _share(yes: float, no: float) -> float:
    return yes / (yes + no) if yes + no > 0.0 else 0.0
