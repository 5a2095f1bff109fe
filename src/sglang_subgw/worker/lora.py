"""Loading and unloading LoRA adapters, for all workers of an engine: SGLang's rules, one change at a time."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, Final

from ..contract import FeatureFacts
from ..coordination.client import Coordination
from ..coordination.finishing import Finishing
from ..errors import RequestRejected
from .adapters import LoraAdapter, LoraAdapters
from .answers.outputs import LoRAUpdateOutput
from .control import ControlClient

FROM_TENSORS: Final = "__tensor__"
"""SGLang's path of an adapter that no file holds."""
_SECTION: Final = "adapters"
_ANSWER: Final = "LoRAUpdateOutput"


class Lora:
    """One worker's way to change the adapters of all."""

    def __init__(
        self,
        coordination: Coordination,
        control: ControlClient,
        adapters: LoraAdapters,
        finishing: Finishing,
        features: FeatureFacts,
    ) -> None:
        self._coordination = coordination
        self._control = control
        self._adapters = adapters
        self._finishing = finishing
        self._features = features
        coordination.handlers["adapters used"] = lambda body: self._adapters.last_used

    async def ensure(self, names: Iterable[str]) -> None:
        """Load again those that had to make room; raises RequestRejected for one that was never loaded."""
        names = list(names)
        limit = self._features.max_loaded_loras
        if limit is not None and len(names) > limit:
            raise RequestRejected(
                f"Received request with {len(names)} unique loras requested but max loaded loras is {limit}",
                param="lora_path",
            )
        for name in names:
            if name in self._adapters.loaded:
                continue
            known = self._coordination.state.get("known_adapters") or {}
            if name not in known:
                raise RequestRejected(
                    f"Got LoRA adapter that has never been loaded: {name}\nAll loaded adapters: {list(known)}.",
                    param="lora_path",
                )
            adapter = LoraAdapter.of(known[name])
            answer = await self.load(adapter.lora_name, adapter.lora_path, pinned=adapter.pinned)
            if not answer.success and name not in self._adapters.loaded:
                raise RequestRejected(
                    f"Failed to implicitly load LoRA adapter {name}: {answer.error_message}", param="lora_path"
                )

    async def load(self, name: str, path: str, *, pinned: bool) -> LoRAUpdateOutput:
        """Load it from files that the engine can read; known to every worker before this returns."""
        return await self._load("LoadLoRAAdapterReqInput", name, path, pinned, {"lora_path": path})

    async def load_tensors(
        self, name: str, config: dict[str, Any], payloads: list[bytes], load_format: str | None
    ) -> LoRAUpdateOutput:
        """Load it from tensors, serialized once per tensor-parallel rank."""
        fields = {"config_dict": config, "serialized_named_tensors": payloads, "load_format": load_format}
        return await self._load("LoadLoRAAdapterFromTensorsReqInput", name, FROM_TENSORS, False, fields)

    async def unload(self, name: str) -> LoRAUpdateOutput:
        """Take it from all workers, wait for the requests that use it, and unload it."""
        if (refusal := self._refusal()) is not None:
            return refusal
        async with self._coordination.exclusive(_SECTION):
            return await self._unload(name)

    async def _load(self, kind: str, name: str, path: str, pinned: bool, fields: dict[str, Any]) -> LoRAUpdateOutput:
        if (refusal := self._refusal()) is not None:
            return refusal

        async def load() -> LoRAUpdateOutput:
            if name in self._pending:
                return _failed(
                    f"LoRA adapter '{name}' has an incomplete unload. Retry the unload before loading it again."
                )
            adapter = LoraAdapter(lora_id=secrets.token_hex(16), lora_name=name, lora_path=path, pinned=pinned)
            message = {**fields, "lora_name": name, "pinned": pinned, "lora_id": adapter.lora_id}
            answers = await self._control.ask(kind, message, _ANSWER, None)
            answer = _merged(answers)
            if answer.success:
                known = {**(self._coordination.state.get("known_adapters") or {}), name: adapter.to_plain()}
                await self._publish([*self._adapters.loaded.values(), adapter], known_adapters=known)
            elif name not in self._adapters.loaded and any(
                row.get("success") or name in (row.get("loaded_adapters") or {}) for row in answers
            ):
                # Some ranks have it: it must be unloaded before it can be loaded again.
                pending = {**self._pending, name: adapter.lora_id}
                await self._coordination.tell("apply", state={"pending_unloads": pending})
            return await self._make_room(answer)

        return await self._finishing.within(self._coordination.exclusive(_SECTION), load)

    async def _make_room(self, answer: LoRAUpdateOutput) -> LoRAUpdateOutput:
        limit = self._features.max_loaded_loras
        while limit is not None and len(self._adapters.loaded) > limit:
            oldest = await self._least_recently_used()
            if oldest is None:
                return _failed("Didn't find any LoRA adapters when trying to evict LRU LoRA adapter: all are pinned.")
            unloaded = await self._unload(oldest.lora_name)
            if not unloaded.success:
                return _failed(f"Error while unloading LRU LoRA adapter '{oldest.lora_name}': {unloaded.error_message}")
            loaded = {k: v for k, v in (answer.loaded_adapters or {}).items() if k != oldest.lora_name}
            answer = LoRAUpdateOutput(answer.success, answer.error_message, loaded)
        return answer

    async def _least_recently_used(self) -> LoraAdapter | None:
        used: dict[str, float] = {}
        for row in await self._coordination.tell("adapters used"):
            for lora_id, at in row.items():
                used[lora_id] = max(at, used.get(lora_id, 0.0))
        # The newest one, which nobody can have used yet, goes last.
        candidates = [adapter for adapter in list(self._adapters.loaded.values())[:-1] if not adapter.pinned]
        return min(candidates, key=lambda adapter: used.get(adapter.lora_id, 0.0), default=None)

    async def _unload(self, name: str) -> LoRAUpdateOutput:
        lora_id = self._pending.get(name)
        if lora_id is None:
            if name not in self._adapters.loaded:
                return _failed(f"LoRA with name {name} does not exist. Loaded LoRAs: {list(self._adapters.loaded)}")
            lora_id = self._adapters.loaded[name].lora_id
            # From now on no worker lets a request use it.
            rest = [adapter for adapter in self._adapters.loaded.values() if adapter.lora_name != name]
            await self._publish(rest, pending_unloads={**self._pending, name: lora_id})
        await self._coordination.tell("unused", {"lora_id": lora_id}, timeout=None)
        fields = {"lora_name": name, "lora_id": lora_id}
        answer = _merged(await self._control.ask("UnloadLoRAAdapterReqInput", fields, _ANSWER, None))
        if answer.success:
            pending = {key: value for key, value in self._pending.items() if key != name}
            await self._coordination.tell("apply", state={"pending_unloads": pending})
        return answer

    @property
    def _pending(self) -> dict[str, str]:
        """Adapters that no request may use and that the engine may still have: their ids by name."""
        return self._coordination.state.get("pending_unloads") or {}

    async def _publish(self, adapters: list[LoraAdapter], **more: Any) -> None:
        await self._coordination.tell("apply", state={"adapters": [a.to_plain() for a in adapters], **more})

    def _refusal(self) -> LoRAUpdateOutput | None:
        if not self._features.enable_lora:
            return _failed("LoRA is not enabled. Please set `--enable-lora` to enable LoRA.")
        if self._features.num_dp_ranks > 1:
            return _failed("data-parallel replicas are not supported for dynamic lora loading")
        return None


def _failed(message: str) -> LoRAUpdateOutput:
    return LoRAUpdateOutput(success=False, error_message=message)


def _merged(answers: list[dict[str, Any]]) -> LoRAUpdateOutput:
    """All ranks must have succeeded; else the failures, each text once."""
    failed = [row for row in answers if not row.get("success")]
    first = failed[0] if failed else answers[0]
    texts = dict.fromkeys(row["error_message"] for row in failed if row.get("error_message"))
    return LoRAUpdateOutput(
        success=not failed,
        error_message=" | ".join(texts) if failed else first.get("error_message"),
        loaded_adapters=_paths(first.get("loaded_adapters")),
    )


def _paths(adapters: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if adapters is None else {name: getattr(value, "fields", value) for name, value in adapters.items()}
