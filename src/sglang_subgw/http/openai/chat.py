"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ...errors import RequestRejected
from ...worker.answers.sample import Sample
from ...worker.requests.request import GenerateRequest
from ..core.exchange import RequestHeaders
from ..services import Services
from .chat_events import ChatEvents
from .chat_prompt import ChatPrompt
from .extras import hidden_states, metadata, sglext
from .handler import Events, OpenAIHandler
from .logprobs import chat_logprobs
from .protocol import CHAT, PREFERRED, passed_on
from .usage import total_usage


class ChatHandler(OpenAIHandler):
    """Chat completions of text messages."""

    table = CHAT

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._prompt = ChatPrompt(self.contract, self.engine.tokenizer)
        model = self.contract.model.default_sampling_params
        self._sampling_defaults = {field.name: model.get(field.name, field.default) for field in PREFERRED}

    async def request(self, values: dict[str, Any], headers: RequestHeaders) -> GenerateRequest:
        self._check(values)
        for field, header in _ID_HEADERS.items():
            values[field] = values[field] or headers.get(header) == "1"
        for name, default in self._sampling_defaults.items():
            if values[name] is None:
                values[name] = default
        prompt_ids = values["input_ids"]
        if prompt_ids is None:
            prompt_ids = await self._prompt.token_ids(values)
        params = self.sampling.params(values, values["max_completion_tokens"] or values["max_tokens"] or None)
        params["spaces_between_special_tokens"] = (values["chat_template_kwargs"] or {}).get(
            "spaces_between_special_tokens", True
        )
        return GenerateRequest(
            input_ids=prompt_ids,
            sampling_params=params,
            return_logprob=values["logprobs"],
            logprob_start_len=-1,
            top_logprobs_num=values["top_logprobs"] or 0,
            return_text_in_logprobs=True,
            return_prompt_token_ids=values["return_prompt_token_ids"]
            or values["return_token_ids"]
            or values["return_input_ids_in_sglext"],
            **passed_on(values),
        )

    def _check(self, values: dict[str, Any]) -> None:
        parser = self.contract.features.reasoning_parser
        if parser and values["separate_reasoning"]:
            raise RequestRejected(
                f"The model's reasoning is not separated here yet (reasoning parser {parser!r}): "
                "send separate_reasoning=false to get it as part of the content.",
                param="separate_reasoning",
            )
        if values["stream"]:
            for name in ("return_prompt_token_ids", "return_token_ids", "return_meta_info"):
                if values[name]:
                    raise RequestRejected(f"{name} is not supported with streaming.", param=name)
        limit = self.contract.server_args.get("context_length")
        asked = values["max_completion_tokens"] or values["max_tokens"]
        if asked and limit and asked > limit and not self.contract.features.allow_auto_truncate:
            raise RequestRejected(
                f"max_completion_tokens is too large: {asked}.This model supports at most {limit} completion tokens.",
                param="max_completion_tokens",
            )

    def whole(self, values: dict[str, Any], samples: Sequence[Sample]) -> dict[str, Any]:
        outputs = [sample.output() for sample in samples]
        metas = [output["meta_info"] for output in outputs]
        answer = {
            "id": metas[0]["id"],
            "object": "chat.completion",
            "created": int(time.time()),
            "model": values["model"],
            "choices": [self._choice(values, index, output) for index, output in enumerate(outputs)],
            "usage": total_usage(samples, values["n"], self.contract.features.enable_cache_report),
            "metadata": metadata(metas[0]),
        }
        extension = sglext(
            metas,
            {**values, "return_routed_experts": values["return_routed_experts"] and not values["return_meta_info"]},
            input_ids=outputs[0].get("prompt_token_ids") if values["return_input_ids_in_sglext"] else None,
            output_ids=[output["output_ids"] for output in outputs] if values["return_output_ids_in_sglext"] else None,
        )
        if extension:
            answer["sglext"] = extension
        return answer

    def _choice(self, values: dict[str, Any], index: int, output: dict[str, Any]) -> dict[str, Any]:
        meta = output["meta_info"]
        reason = meta.get("finish_reason") or {}
        logprobs = None
        if values["logprobs"]:
            logprobs = chat_logprobs(
                meta.get("output_token_logprobs") or [], meta.get("output_top_logprobs") or [], self.token_bytes
            )
        choice = {
            "index": index,
            "message": {"role": "assistant", "content": output.get("text", ""), "reasoning_content": None},
            "logprobs": logprobs,
            "finish_reason": reason.get("type"),
            "matched_stop": reason.get("matched"),
        }
        states = hidden_states(meta, values["return_hidden_states"])
        if states is not None:
            choice["hidden_states"] = states
        if values["return_prompt_token_ids"] or values["return_token_ids"]:
            choice["prompt_token_ids"] = output.get("prompt_token_ids")
        if values["return_token_ids"]:
            choice["response_token_ids"] = output["output_ids"]
        if values["return_meta_info"]:
            choice["meta_info"] = meta
        return choice

    def events(self, values: dict[str, Any], headers: RequestHeaders) -> Events:
        return ChatEvents(
            values,
            self.contract.features,
            self.token_bytes,
            ids_framed=headers.get("x-sglext-ids-framed") == "1",
        )


_ID_HEADERS = {
    "return_input_ids_in_sglext": "x-sglext-return-input-ids",
    "return_output_ids_in_sglext": "x-sglext-return-output-ids",
}
