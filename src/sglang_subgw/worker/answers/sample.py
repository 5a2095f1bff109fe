"""One running sub-request and what the engine has sent for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...errors import EngineRejected, RequestError
from .facts import AnswerFacts
from .logprobs import Logprobs, column
from .meta import counts, meta_info

OUTPUT_LISTS = ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs")
"""Lists of meta_info that run along the output tokens: an incremental answer holds their new part only."""


class Sample:
    """A sub-request: its ids, its accumulated output, and the answers built from it on demand.

    The worker calls `on_output` and then, once for all outputs that came together, `announce`; or `on_abort` or `fail`.
    Lists that it hands out are its own, not to be changed.
    """

    __slots__ = (
        "_abort",
        "_chunks",
        "_columns",
        "_facts",
        "_joined",
        "_read_chunks",
        "_row",
        "_sent_at",
        "_taken_chunks",
        "_taken_ids",
        "_text",
        "abort_sent",
        "created_at",
        "customized",
        "error",
        "finish_reason",
        "finished",
        "finished_at",
        "first_at",
        "index",
        "logprobs",
        "lora_id",
        "on_news",
        "output_ids",
        "prompt_token_ids",
        "public_id",
        "queued",
        "rid",
        "sent_at",
        "stream",
        "warm_up",
    )

    def __init__(
        self,
        rid: str,
        public_id: str,
        index: int,
        facts: AnswerFacts,
        *,
        stream: bool = False,
        logprobs: Logprobs | None = None,
        prompt_token_ids: list[int] | None = None,
        created_at: float | None = None,
        warm_up: bool = False,
        lora_id: str | None = None,
    ) -> None:
        self.rid = rid
        self.public_id = public_id
        self.index = index
        self.stream = stream
        self.finished = False
        self.finish_reason: dict[str, Any] | None = None
        self.error: RequestError | None = None
        """The engine ended it with an error status, or went away."""
        self.output_ids: list[int] = []
        self.logprobs = logprobs
        self.customized: dict[str, list[Any]] = {}
        self.prompt_token_ids = prompt_token_ids
        """Shown in the answer if not None."""
        self.created_at = time.perf_counter() if created_at is None else created_at
        self.sent_at = 0.0
        self.finished_at = 0.0
        self.warm_up = warm_up
        """A prefix-cache copy that SGLang sends before parallel samples; nobody sees its answer."""
        self.lora_id = lora_id
        """The adapter that it uses until its end."""
        self.abort_sent = False
        self.queued = False
        self.on_news: Callable[[Sample], None] | None = None
        self._facts = facts
        self._columns: dict[str, Any] | None = None
        self._row = 0
        self._abort: dict[str, Any] | None = None
        self._chunks: list[str] = []
        self._joined = 0
        self._text = ""
        self._taken_chunks = 0
        self._read_chunks = 0
        self._taken_ids = 0
        self.first_at = 0.0
        self._sent_at = 0.0

    @property
    def text(self) -> str:
        """All text so far."""
        if self._joined < len(self._chunks):
            self._text += "".join(self._chunks[self._joined :])
            self._joined = len(self._chunks)
        return self._text

    def read(self) -> str:
        """The text that arrived since the last `read`."""
        begin, self._read_chunks = self._read_chunks, len(self._chunks)
        return self._chunks[begin] if self._read_chunks - begin == 1 else "".join(self._chunks[begin:])

    @property
    def has_output(self) -> bool:
        """Anything was generated for it."""
        return bool(self.output_ids)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, 0 before the first output."""
        return self._count("prompt_tokens")

    @property
    def completion_tokens(self) -> int:
        """Tokens generated so far."""
        return self._count("completion_tokens") if self._abort is None else len(self.output_ids)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from the engine's prefix cache."""
        return self._count("cached_tokens")

    @property
    def reasoning_tokens(self) -> int:
        """Output tokens that the engine counts as reasoning."""
        return self._count("reasoning_tokens")

    def output(self) -> dict[str, Any]:
        """The cumulative answer: `text`, `output_ids`, `meta_info`, as SGLang's; its lists grow until the end."""
        return self._answer(self.text, self.output_ids)

    def take(self) -> dict[str, Any]:
        """The incremental answer: what arrived since the last `take`."""
        chunks, ids = self._taken_chunks, self._taken_ids
        self._taken_chunks, self._taken_ids = len(self._chunks), len(self.output_ids)
        return self._answer("".join(self._chunks[chunks:]), self.output_ids[ids:], ids)

    @property
    def is_plain(self) -> bool:
        """Its answer so far is `text`, `output_ids` and a small `meta_info`, and nothing else."""
        return (
            self.logprobs is None
            and self.prompt_token_ids is None
            and self._abort is None
            and self._columns is not None
            and "output_strs" in self._columns
        )

    def meta(self) -> dict[str, Any]:
        """The `meta_info` of the cumulative answer, alone."""
        return self._stamped(meta_info(self, self._facts, self._columns, self._row, self._abort))

    def counts(self) -> tuple[int, tuple[Any, ...]] | None:
        """Tokens so far, and all else that changes in `meta_info` while the sample goes on; None if that is not all.

        It is not before the first answer either, which says when it was sent.
        """
        if not self._sent_at or self._columns is None:
            return None
        return counts(self, self._facts, self._columns, self._row)

    @property
    def weight_version(self) -> str:
        """That of the weights which the engine has now."""
        return self._facts.weight_version

    def on_output(self, columns: dict[str, Any], row: int) -> None:
        """Row `row` of a columnar message is this sample's next output."""
        self._columns = columns
        self._row = row
        if text := column(columns, "output_strs", row):
            self._chunks.append(text)
        if ids := column(columns, "output_ids", row):
            self.output_ids.extend(ids)
        if self.logprobs is not None:
            self.logprobs.extend(columns, row)
        if columns.get("customized_info"):
            self._extend_customized(columns["customized_info"], row)
        if not self.first_at:
            self.first_at = time.perf_counter()
        if (reason := column(columns, "finished_reasons", row)) is not None:
            self._end(reason)

    def announce(self) -> None:
        """Tell whoever waits for it that there is something new."""
        if self.on_news is not None:
            self.on_news(self)

    def on_abort(self, fields: dict[str, Any]) -> None:
        """The scheduler dropped it before it ran (an AbortReq came back)."""
        self._abort = fields
        reason = fields.get("finished_reason")
        if not reason:
            reason = {"type": "abort", "message": fields.get("abort_message") or "Abort in waiting queue"}
        self._end(reason)
        self.announce()

    def fail(self, error: RequestError) -> None:
        """End it with an error of the gateway's own; nothing more will arrive."""
        if self.finished:
            return
        self._abort = {}
        self._end({"type": "abort", "message": error.message, "status_code": error.status})
        self.error = error
        self.announce()

    def _end(self, reason: dict[str, Any]) -> None:
        self.finished = True
        self.finish_reason = reason
        self.finished_at = time.perf_counter()
        status = reason.get("status_code")
        if reason.get("type") == "abort" and isinstance(status, int) and 400 <= status < 600:
            message = str(reason.get("message") or "The engine aborted the request.")
            self.error = EngineRejected(message, status=status, type=_ERROR_TYPES.get(status))

    def _extend_customized(self, info: dict[str, Any], row: int) -> None:
        for key, values in info.items():
            new = values[row] if row < len(values) else None
            self.customized.setdefault(key, []).extend(new or ())

    def _count(self, name: str) -> int:
        if self._columns is None:
            return 0
        return column(self._columns, name, self._row) or 0

    def _answer(self, text: str, ids: list[int], since: int | None = None) -> dict[str, Any]:
        out: dict[str, Any] = {"text": text, "output_ids": ids}
        if self._abort is None and (self._columns is None or "output_strs" not in self._columns):
            del out["text"]
        meta = meta_info(self, self._facts, self._columns, self._row, self._abort)
        if since is not None:
            for key in (*OUTPUT_LISTS, *self.customized):
                if key in meta:
                    meta[key] = meta[key][since:]
        out["meta_info"] = self._stamped(meta)
        if self.prompt_token_ids is not None:
            out["prompt_token_ids"] = self.prompt_token_ids
        return out

    def _stamped(self, meta: dict[str, Any]) -> dict[str, Any]:
        """When the first answer and the last went to the client."""
        if not self._sent_at and (self.finished or self.stream):
            self._sent_at = time.time()
            meta["response_sent_to_client_ts"] = self._sent_at
        return meta


_ERROR_TYPES = {400: "BadRequestError", 503: "ServiceUnavailableError"}
