"""Chunks of a streamed chat completion, as raw bytes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from ...contract import FeatureFacts
from ...worker.answers.sample import Sample
from ..core.jsonio import dumps
from .extras import hidden_states, sglext, wants_meta
from .handler import wants_usage
from .logprobs import TokenBytes, chat_logprobs
from .usage import sample_usage, total_usage

_UNFINISHED: Final = b',"finish_reason":null,"matched_stop":null}]'
_CONTENT: Final = b',"content":'
_END: Final = b"}\n\n"
_PLAIN_END: Final = b'},"logprobs":null' + _UNFINISHED + _END
_ROLE: Final = b',"role":"assistant","content":""},"logprobs":null' + _UNFINISHED + _END


class ChatEvents:
    """Per choice: a chunk with the role, chunks with text, one with the reason of its end; then one with the usage.

    What all chunks of a choice share is rendered once.
    """

    def __init__(
        self, values: dict[str, Any], features: FeatureFacts, token_bytes: TokenBytes, *, ids_framed: bool
    ) -> None:
        self._values = values
        self._cache_report = features.enable_cache_report
        self._token_bytes = token_bytes
        self._ids_framed = ids_framed
        self._include_usage, self._continuous = wants_usage(values, features.stream_response_default_include_usage)
        self._shared = b',"object":"chat.completion.chunk","created":%d,"model":%s,"choices":[' % (
            time.time(),
            dumps(values["model"]),
        )
        self._heads: dict[int, bytes] = {}
        self._detailed = bool(values["logprobs"] or self._continuous)
        self._logprobs: dict[int, tuple[list[Any], list[Any]]] = {}
        self._finished: list[Sample] = []
        self._id = b'""'

    def news(self, sample: Sample) -> bytes:
        if sample.error is not None:
            raise sample.error
        if sample.finished:
            self._finished.append(sample)
        head = self._heads.get(sample.index)
        if head is None:
            return self._first(sample)
        if self._detailed:
            return self._detailed_text(sample, head)
        delta = sample.read()
        return b"%b%b%b%b" % (head, _CONTENT, dumps(delta), _PLAIN_END) if delta else b""

    def _first(self, sample: Sample) -> bytes:
        self._id = dumps(sample.public_id)
        head = b'data: {"id":%s%s{"index":%d,"delta":{"reasoning_content":null' % (self._id, self._shared, sample.index)
        self._heads[sample.index] = head
        return head + _ROLE + self._detailed_text(sample, head)

    def _detailed_text(self, sample: Sample, head: bytes) -> bytes:
        if self._values["logprobs"]:
            self._collect_logprobs(sample)
        delta = sample.read()
        if not delta:
            return b""
        parts = [head, _CONTENT, dumps(delta), b'},"logprobs":', self._take_logprobs(sample.index), _UNFINISHED]
        if self._continuous:
            parts += (b',"usage":', dumps(sample_usage(sample, self._cache_report)))
        return b"".join((*parts, _END))

    def last(self, samples: Sequence[Sample]) -> bytes:
        parts = []
        for sample in self._finished:
            reason = sample.finish_reason or {}
            finish = (dumps(reason.get("type")), dumps(reason.get("matched")))
            parts.append(
                b'%s},"logprobs":null,"finish_reason":%s,"matched_stop":%s}]}\n\n'
                % (self._heads[sample.index], *finish)
            )
        parts += self._extras(samples)
        if self._include_usage:
            usage = total_usage(samples, self._values["n"], self._cache_report)
            parts.append(self._without_choices(b'"usage":' + dumps(usage)))
        return b"".join(parts)

    def _extras(self, samples: Sequence[Sample]) -> list[bytes]:
        values = self._values
        input_ids = samples[0].prompt_token_ids if values["return_input_ids_in_sglext"] else None
        output_ids = [sample.output_ids for sample in samples] if values["return_output_ids_in_sglext"] else None
        metas = [sample.output()["meta_info"] for sample in samples] if wants_meta(values) else []
        parts = []
        for sample, meta in zip(samples, metas, strict=False):
            if values["return_hidden_states"] and meta.get("hidden_states"):
                parts.append(self._hidden_states(sample, meta))
        if self._ids_framed:
            # An event of its own name: what is on the way can pick the ids out without reading JSON.
            plain, ids = sglext(metas, values), {"input_ids": input_ids, "output_ids": output_ids}
            if plain:
                parts.append(self._without_choices(b'"usage":null,"sglext":' + dumps(plain)))
            ids = {name: value for name, value in ids.items() if value is not None}
            if ids:
                parts.append(b"event: sglext_ids\n" + self._without_choices(b'"usage":null,"sglext":' + dumps(ids)))
            return parts
        extension = sglext(metas, values, input_ids=input_ids, output_ids=output_ids)
        if extension:
            parts.append(self._without_choices(b'"usage":null,"sglext":' + dumps(extension)))
        return parts

    def _hidden_states(self, sample: Sample, meta: dict[str, Any]) -> bytes:
        delta = {
            "role": None,
            "content": None,
            "reasoning_content": None,
            "hidden_states": hidden_states(meta, self._values["return_hidden_states"]),
        }
        return b'data: {"id":%s%s{"index":%d,"delta":%s,"logprobs":null%s,"usage":null}\n\n' % (
            self._id,
            self._shared,
            sample.index,
            dumps(delta),
            _UNFINISHED,
        )

    def _without_choices(self, rest: bytes) -> bytes:
        return b'data: {"id":' + self._id + self._shared + b"]," + rest + _END

    def _collect_logprobs(self, sample: Sample) -> None:
        meta = sample.take()["meta_info"]
        tokens, tops = self._logprobs.setdefault(sample.index, ([], []))
        tokens += meta.get("output_token_logprobs") or ()
        tops += meta.get("output_top_logprobs") or ()

    def _take_logprobs(self, index: int) -> bytes:
        """Those of all tokens since the last text: a token may bring none, as half a character does."""
        tokens, tops = self._logprobs.pop(index, ([], []))
        return dumps(chat_logprobs(tokens, tops, self._token_bytes)) if tokens else b"null"
