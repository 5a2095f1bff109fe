"""SGLang's own worker in the engine's process, as one more worker among the shards: it hears of their changes, and what
is changed through it (Engine's methods, engine routes) waits for them and is told to them.

Its methods stay what they are; those that change what all workers agree on get a section, and news, around them.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from ...coordination.client import Coordination
from ...coordination.gate import Gate
from ...coordination.quiesce import PAUSE_SECTION, aborted, quiet, weights_section
from ...coordination.released_memory import kinds, release, resume
from ..engine_loop import EngineLoop
from .request_lock import RequestLock

log = logging.getLogger("sglang_subgw.engine")

type Method = Callable[..., Awaitable[Any]]

_NAME: Final = "SGLang's own"
_WEIGHTS: Final = (
    "update_weights_from_disk",
    "update_weights_from_distributed",
    "update_weights_from_tensor",
    "update_weights_from_ipc",
    "begin_weight_update",
    "end_weight_update",
)
_ADAPTERS: Final = ("load_lora_adapter", "load_lora_adapter_from_tensors", "unload_lora_adapter")


class StockWorker:
    """From `start` to `close`, on the tokenizer manager's loop."""

    def __init__(self, manager: Any, path: str, loop: EngineLoop) -> None:
        self._manager = manager
        self._loop = loop
        self._changing: set[str] = set()
        """Sections in which this worker is: there, SGLang's own methods see to it what this worker does."""
        self._gate = Gate()
        self._requests = RequestLock(manager.model_update_lock, self._gate)
        self._before: dict[str, Any] = {}
        self._coordination = Coordination(path, _NAME)
        self._coordination.on_state = self._on_state
        self._coordination.handlers |= {
            "idle": self._idle,
            "unused": self._unused,
            "adapters used": lambda body: {},
            "freeze gc": lambda body: gc.freeze(),
            "active": lambda body: self._requests.running,
        }

    def start(self) -> None:
        """Join, as soon as the loop gets to it."""
        self._joining = asyncio.run_coroutine_threadsafe(self._start(), self._loop.loop)

    def close(self) -> None:
        """Leave; the manager is as it was before."""
        for name in self._before:
            # The class's own method comes to light again.
            delattr(self._manager, name)
        joined, self._before = bool(self._before), {}
        if self._loop.loop.is_running():
            asyncio.run_coroutine_threadsafe(self._leave(joined), self._loop.loop)

    async def _leave(self, joined: bool) -> None:
        if joined:
            self._requests.close()
        await self._coordination.close()

    async def _start(self) -> None:
        try:
            await self._coordination.start()
        except Exception:
            log.exception("SGLang's own worker can't hear of what shards change.")
            return
        self._requests.start()
        for name in _WEIGHTS:
            self._wrap(name, self._change_weights)
        self._wrap("update_weight_version", self._rename_weights)
        for name in _ADAPTERS:
            self._wrap(name, self._change_adapters)
        self._wrap("_unload_lora_adapter_locked", self._unload)
        self._wrap("release_memory_occupation", self._release)
        self._wrap("resume_memory_occupation", self._resume)
        self._wrap("pause_generation", self._pause)
        self._wrap("continue_generation", self._continue)

    def _wrap(self, name: str, around: Callable[..., Awaitable[Any]]) -> None:
        stock: Method | None = getattr(self._manager, name, None)
        if stock is None:
            return

        async def method(*args: Any, **kwargs: Any) -> Any:
            return await around(stock, *args, **kwargs)

        self._before[name] = stock
        setattr(self._manager, name, method)

    # Changes through SGLang's own worker.

    async def _change_weights(self, stock: Method, obj: Any, *args: Any, **kwargs: Any) -> Any:
        abort = self._abort_all if getattr(obj, "abort_all_requests", False) else None
        section = quiet(self._coordination, self._gate, abort)
        return await self._changed(section, lambda: stock(obj, *args, **kwargs))

    async def _rename_weights(self, stock: Method, *args: Any, **kwargs: Any) -> Any:
        """They stay what they are, and so does what runs."""
        return await self._changed(weights_section(self._coordination), lambda: stock(*args, **kwargs))

    async def _changed(self, section: AbstractAsyncContextManager[None], change: Callable[[], Awaitable[Any]]) -> Any:
        async with section:
            self._changing.add("weights")
            try:
                result = await change()
                await self._coordination.tell("apply", state={"weights": self._weights()})
                return result
            finally:
                self._changing.discard("weights")

    async def _release(self, stock: Method, obj: Any, *args: Any, **kwargs: Any) -> Any:
        async with quiet(self._coordination, self._gate):
            return await release(self._coordination, kinds(obj.tags), lambda: stock(obj, *args, **kwargs))

    async def _resume(self, stock: Method, obj: Any, *args: Any, **kwargs: Any) -> Any:
        async with weights_section(self._coordination):
            return await resume(self._coordination, kinds(obj.tags), lambda: stock(obj, *args, **kwargs))

    async def _change_adapters(self, stock: Method, *args: Any, **kwargs: Any) -> Any:
        async with self._coordination.exclusive("adapters"):
            self._changing.add("adapters")
            try:
                result = await stock(*args, **kwargs)
                await self._coordination.tell("apply", state=adapters_of(self._manager))
                return result
            finally:
                self._changing.discard("adapters")

    async def _unload(self, stock: Method, obj: Any) -> Any:
        """Within `_change_adapters`: no shard may use it any longer when the engine is told."""
        loaded = self._manager.lora_registry.get_all_adapters()
        if (ref := loaded.pop(obj.lora_name, None)) is not None:
            await self._coordination.tell("apply", state={"adapters": [plain(other) for other in loaded.values()]})
            await self._coordination.tell("unused", {"lora_id": ref.lora_id}, timeout=None)
        return await stock(obj)

    async def _pause(self, stock: Method, obj: Any) -> None:
        async with self._coordination.exclusive(PAUSE_SECTION):
            retracted = obj.mode == "retract" or bool(self._coordination.state.get("retracted"))
            await self._coordination.tell("apply", state={"paused": True, "retracted": retracted})
            await stock(obj)
            if obj.mode == "abort":
                await aborted(self._coordination, self._abort_all)
            await self._until_done()

    async def _continue(self, stock: Method, obj: Any) -> None:
        async with self._coordination.exclusive(PAUSE_SECTION):
            await stock(obj)
            await self._coordination.tell("apply", state={"paused": False, "retracted": False})
            await self._until_done()

    async def _until_done(self) -> None:
        # As `engine_api.pausing` does: the router reads its workers in turns.
        await self._manager.get_internal_state()

    def _abort_all(self) -> None:
        self._manager.abort_request(abort_all=True)

    # Changes by other workers.

    def _on_state(self, state: dict[str, Any]) -> None:
        self._gate.set(paused=bool(state.get("paused")), held=bool(state.get("held") or state.get("released")))
        if "adapters" not in self._changing and "adapters" in state:
            self._take_adapters(state)
        if "weights" not in self._changing:
            self._take_weights(state.get("weights") or {})

    def _take_adapters(self, state: dict[str, Any]) -> None:
        from sglang.srt.lora.lora_registry import LoRARef

        registry = self._manager.lora_registry
        wanted = {row["lora_name"]: LoRARef(**row) for row in state["adapters"]}
        for name, ref in registry.get_all_adapters().items():
            if name not in wanted or wanted[name].lora_id != ref.lora_id:
                del registry._registry[name]
        for name, ref in wanted.items():
            if name not in registry.get_all_adapters():
                registry._register_adapter(ref)
        self._manager.lora_ref_cache.update(
            {name: LoRARef(**row) for name, row in (state.get("known_adapters") or {}).items()}
        )
        self._manager.pending_lora_unloads = dict(state.get("pending_unloads") or {})

    def _take_weights(self, weights: dict[str, Any]) -> None:
        manager = self._manager
        for name in ("model_path", "served_model_name"):
            if weights.get(name) is not None:
                setattr(manager, name, weights[name])
        fields = {"weight_version": weights.get("version"), "load_format": weights.get("load_format")}
        if changed := {k: v for k, v in fields.items() if v is not None and v != manager.config_value(k)}:
            manager.record_config_updates("sglang_subgw.weights", **changed)

    async def _idle(self, body: dict[str, Any]) -> None:
        await self._requests.emptied()

    async def _unused(self, body: dict[str, Any]) -> None:
        counter = self._manager.lora_registry._counters.get(body["lora_id"])
        if counter is not None and "adapters" not in self._changing:
            await counter.wait_for_zero()
            self._manager.lora_registry._counters.pop(body["lora_id"], None)

    def _weights(self) -> dict[str, Any]:
        manager = self._manager
        return {
            "version": manager.config_value("weight_version"),
            "model_path": manager.model_path,
            "served_model_name": manager.served_model_name,
            "load_format": manager.config_value("load_format"),
        }


def adapters_of(manager: Any) -> dict[str, Any]:
    """What SGLang's worker has of LoRA adapters, as a part of the state that all workers agree on."""
    registry = getattr(manager, "lora_registry", None)
    loaded = {} if registry is None else registry.get_all_adapters()
    return {
        "adapters": [plain(ref) for ref in loaded.values()],
        "known_adapters": {name: plain(ref) for name, ref in getattr(manager, "lora_ref_cache", {}).items()},
        "pending_unloads": dict(getattr(manager, "pending_lora_unloads", {})),
    }


def plain(ref: Any) -> dict[str, Any]:
    """SGLang's LoRARef as plain values."""
    return {
        "lora_id": ref.lora_id,
        "lora_name": ref.lora_name,
        "lora_path": ref.lora_path,
        "pinned": bool(ref.pinned),
    }
