"""POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ...worker.answers.sample import Sample
from ...worker.requests.request import GenerateRequest
from ..core.exchange import RequestHeaders
from ..core.jsonio import dumps
from .extras import hidden_states, metadata, sglext, wants_meta
from .handler import Events, OpenAIHandler, wants_usage
from .logprobs import completion_logprobs
from .protocol import COMPLETION, passed_on
from .usage import sample_usage, total_usage


class CompletionsHandler(OpenAIHandler):
    """Text completions of strings and of token ids, one or many."""

    table = COMPLETION

    async def request(self, values: dict[str, Any], headers: RequestHeaders) -> GenerateRequest:
        prompt = values["prompt"]
        is_text = isinstance(prompt, str) or isinstance(prompt[0], str)
        logprobs = values["logprobs"]
        return GenerateRequest(
            text=prompt if is_text else None,
            input_ids=None if is_text else prompt,
            sampling_params=self.sampling.params(values, values["max_tokens"]),
            return_logprob=logprobs is not None,
            top_logprobs_num=logprobs or 0,
            logprob_start_len=0 if values["echo"] and logprobs else -1,
            return_text_in_logprobs=True,
            return_prompt_token_ids=values["return_token_ids"],
            **passed_on(values),
        )

    def echo(self, values: dict[str, Any], index: int) -> str:
        """The prompt of a choice as text, if it is to be in the answer."""
        if not values["echo"]:
            return ""
        prompt = values["prompt"]
        if isinstance(prompt, list) and not isinstance(prompt[0], int):
            prompt = prompt[index // values["n"]]
        if isinstance(prompt, str):
            return prompt
        return self.engine.tokenizer.decode(prompt, skip_special_tokens=True)

    def logprobs(self, values: dict[str, Any], meta: dict[str, Any], with_prompt: bool) -> dict[str, Any] | None:
        """The `logprobs` of a choice, the prompt's first where it is echoed."""
        if values["logprobs"] is None:
            return None
        tokens = list(meta.get("output_token_logprobs") or ())
        tops = list(meta.get("output_top_logprobs") or ())
        if with_prompt and values["echo"] and values["logprobs"]:
            tokens[:0] = meta.get("input_token_logprobs") or ()
            tops[:0] = meta.get("input_top_logprobs") or ()
        return completion_logprobs(tokens, tops, self.token_bytes) if tokens or with_prompt else None

    def whole(self, values: dict[str, Any], samples: Sequence[Sample]) -> dict[str, Any]:
        outputs = [sample.output() for sample in samples]
        metas = [output["meta_info"] for output in outputs]
        choices = []
        for index, (output, meta) in enumerate(zip(outputs, metas, strict=True)):
            reason = meta.get("finish_reason") or {}
            choice = {
                "index": index,
                "text": self.echo(values, index) + output.get("text", ""),
                "logprobs": self.logprobs(values, meta, with_prompt=True),
                "finish_reason": reason.get("type"),
                "matched_stop": reason.get("matched"),
            }
            states = hidden_states(meta, values["return_hidden_states"])
            if states is not None:
                choice["hidden_states"] = states
            if values["return_token_ids"]:
                choice["token_ids"] = output["output_ids"]
                choice["prompt_token_ids"] = output.get("prompt_token_ids")
            choices.append(choice)
        answer = {
            "id": metas[0]["id"],
            "object": "text_completion",
            "created": int(time.time()),
            "model": values["model"],
            "choices": choices,
            "usage": total_usage(samples, values["n"], self.contract.features.enable_cache_report),
            "metadata": metadata(metas[0]),
        }
        extension = sglext(metas, values)
        if extension:
            answer["sglext"] = extension
        return answer

    def events(self, values: dict[str, Any], headers: RequestHeaders) -> Events:
        return _CompletionEvents(self, values)


class _CompletionEvents:
    """Chunks of a streamed completion; what all chunks of a choice share is rendered once."""

    def __init__(self, handler: CompletionsHandler, values: dict[str, Any]) -> None:
        self._handler = handler
        self._values = values
        features = handler.contract.features
        self._include_usage, self._continuous = wants_usage(values, features.stream_response_default_include_usage)
        self._detailed = values["logprobs"] is not None or values["return_token_ids"]
        self._shared = b',"object":"text_completion","created":%d,"model":%s,"choices":[' % (
            time.time(),
            dumps(values["model"]),
        )
        self._heads: dict[int, bytes] = {}
        self._id = b'""'

    def news(self, sample: Sample) -> bytes:
        if sample.error is not None:
            raise sample.error
        first = sample.index not in self._heads
        if first:
            self._id = dumps(sample.public_id)
            self._heads[sample.index] = b'data: {"id":%s%s{"index":%d,"text":' % (self._id, self._shared, sample.index)
        logprobs, more = b"null", b""
        if self._detailed:
            out = sample.take()
            echoed = first and bool(self._values["echo"] and self._values["logprobs"])
            logprobs = dumps(self._handler.logprobs(self._values, out["meta_info"], with_prompt=echoed))
            if self._values["return_token_ids"]:
                more = b',"token_ids":' + dumps(out["output_ids"])
                if first:
                    more += b',"prompt_token_ids":' + dumps(out.get("prompt_token_ids"))
        delta = sample.read()
        if first:
            delta = self._handler.echo(self._values, sample.index) + delta
        reason = sample.finish_reason
        return b'%s%s,"logprobs":%s,%s%s}],"usage":%s}\n\n' % (
            self._heads[sample.index],
            dumps(delta),
            logprobs,
            b'"finish_reason":null,"matched_stop":null' if reason is None else _finish(reason),
            more,
            dumps(sample_usage(sample)) if self._continuous else b"null",
        )

    def last(self, samples: Sequence[Sample]) -> bytes:
        parts = []
        head = b'data: {"id":' + self._id + self._shared
        if wants_meta(self._values):
            metas = [sample.output()["meta_info"] for sample in samples]
            for sample, meta in zip(samples, metas, strict=True):
                if meta.get("hidden_states"):
                    states = dumps(hidden_states(meta, self._values["return_hidden_states"]))
                    parts.append(
                        b'%s"","logprobs":null,"finish_reason":null,"matched_stop":null,"hidden_states":%s}],"usage":null}\n\n'
                        % (self._heads[sample.index], states)
                    )
            extension = sglext(metas, self._values)
            if extension:
                parts.append(b'%s],"usage":null,"sglext":%s}\n\n' % (head, dumps(extension)))
        if self._include_usage:
            usage = total_usage(samples, self._values["n"], self._handler.contract.features.enable_cache_report)
            given = {name: value for name, value in usage.items() if value is not None}
            parts.append(b'%s],"usage":%s}\n\n' % (head, dumps(given)))
        return b"".join(parts)


def _finish(reason: dict[str, Any]) -> bytes:
    return b'"finish_reason":%s,"matched_stop":%s' % (dumps(reason.get("type")), dumps(reason.get("matched")))
