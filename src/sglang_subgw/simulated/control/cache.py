"""Caches: the prefix cache, HiCache's storage, and the corpora of n-gram speculation."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..scheduler import Scheduler
from ..wire.structs import StandIn, make
from .family import Answer, ControlFamily, Handler, Send


class Caches(ControlFamily):
    """A flush that may wait for the engine to be idle; the rest answers as SGLang's with its feature on or off."""

    def __init__(self, scheduler: Scheduler, send: Send) -> None:
        super().__init__(scheduler, send)
        self.storage: str | None = None
        """HiCache's storage backend, None while there is none."""
        self._pending: tuple[StandIn, float] | None = None

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "FlushCacheReqInput": self._flush,
            "ClearHiCacheReqInput": self._clear_storage,
            "AttachHiCacheStorageReqInput": self._attach,
            "DetachHiCacheStorageReqInput": self._detach,
            "GetHiCacheL3LayoutReq": self._layout,
        }

    def waits(self) -> bool:
        return self._pending is not None

    def tick(self) -> None:
        """Answer a flush that waited."""
        if self._pending is None:
            return
        message, deadline = self._pending
        if self._scheduler.idle:
            self._pending = None
            self._send(message, _flushed(self._scheduler.flush()))
        elif time.monotonic() >= deadline:
            self._pending = None
            self._send(message, _flushed(False, "Timed out waiting for idle state."))

    def _flush(self, message: StandIn) -> Answer:
        if self._pending is not None:
            return _flushed(False, "Another flush_cache is already in progress.")
        if (message.timeout_s or 0.0) > 0 and not self._scheduler.idle:
            self._pending = (message, time.monotonic() + message.timeout_s)
            return None
        return _flushed(self._scheduler.flush())

    def _clear_storage(self, message: StandIn) -> Answer:
        return make("ClearHiCacheReqOutput", success=self._hierarchical)

    def _attach(self, message: StandIn) -> Answer:
        problem = self._storage_problem("attach")
        if not problem:
            self.storage = message.hicache_storage_backend
        text = problem or "Attached HiCache storage backend successfully."
        return make("AttachHiCacheStorageReqOutput", success=not problem, message=text)

    def _detach(self, message: StandIn) -> Answer:
        problem = self._storage_problem("detach")
        if not problem:
            self.storage = None
        text = problem or "HiCache storage backend is detached."
        return make("DetachHiCacheStorageReqOutput", success=not problem, message=text)

    def _layout(self, message: StandIn) -> Answer:
        reason = "Mooncake storage is not attached" if self._hierarchical else "Hierarchical cache is disabled"
        layout = {
            "enabled": False,
            "backend": self.storage,
            "page_size": self.server_arg("page_size"),
            "hicache_object_layout": {"pools": []},
            "reason": reason,
        }
        return make("GetHiCacheL3LayoutReqOutput", layout=layout)

    @property
    def _hierarchical(self) -> bool:
        return bool(self.server_arg("enable_hierarchical_cache"))

    def _storage_problem(self, what: str) -> str:
        scheduler = self._scheduler
        if not self._hierarchical:
            return "Hierarchical cache is not enabled."
        if not scheduler.idle:
            counts = f"#queue-req={len(scheduler.waiting)} #running-req={len(scheduler.running)}"
            return f"Reject {what}: scheduler is not idle. {counts}"
        return ""


class Corpora(ControlFamily):
    """External corpora of n-gram speculation, by their token counts."""

    def __init__(self, scheduler: Scheduler, send: Send) -> None:
        super().__init__(scheduler, send)
        self.token_counts: dict[str, int] = {}

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "AddExternalCorpusReqInput": self._add,
            "RemoveExternalCorpusReqInput": self._remove,
            "ListExternalCorporaReqInput": self._list,
        }

    def _add(self, message: StandIn) -> Answer:
        if self._off:
            return make("AddExternalCorpusReqOutput", success=False, message=self._off)
        name, count = message.corpus_id, sum(map(len, message.token_chunks))
        self.token_counts[name] = count
        text = f"Loaded corpus '{name}' with {count} tokens."
        return make("AddExternalCorpusReqOutput", success=True, corpus_id=name, message=text, loaded_token_count=count)

    def _remove(self, message: StandIn) -> Answer:
        name = message.corpus_id
        problem = self._off or ("" if name in self.token_counts else f"Corpus '{name}' does not exist.")
        if not problem:
            del self.token_counts[name]
        text = problem or f"Removed corpus '{name}'."
        return make("RemoveExternalCorpusReqOutput", success=not problem, message=text)

    def _list(self, message: StandIn) -> Answer:
        kind = "ListExternalCorporaReqOutput"
        if self._off:
            return make(kind, success=False, message=self._off)
        return make(kind, success=True, corpus_token_counts=dict(self.token_counts))

    @property
    def _off(self) -> str:
        on = self._scheduler.contract.features.speculative_algorithm == "NGRAM"
        return "" if on else "Ngram speculative decoding is not enabled."


def _flushed(success: bool, message: str = "") -> StandIn:
    return make("FlushCacheReqOutput", success=success, message=message)
