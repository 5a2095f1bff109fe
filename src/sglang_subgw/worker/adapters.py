"""The LoRA adapters that this worker knows, which of them its requests use, and when each was used last."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Self

from ..errors import RequestRejected


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraAdapter:
    """SGLang's LoRARef: an adapter as the engine has it."""

    lora_id: str
    lora_name: str
    lora_path: str
    pinned: bool = False

    def to_plain(self) -> dict[str, Any]:
        """As a plain object."""
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Self:
        """The adapter that `to_plain` wrote, or SGLang's own field names."""
        return cls(
            lora_id=plain["lora_id"],
            lora_name=plain["lora_name"],
            lora_path=plain["lora_path"],
            pinned=bool(plain.get("pinned")),
        )


class LoraAdapters:
    """Those that are loaded now, by name; the same in every worker of the engine."""

    def __init__(self) -> None:
        self.loaded: dict[str, LoraAdapter] = {}
        self.last_used: dict[str, float] = {}
        """By lora_id, in time.time's seconds; only those that requests of this worker asked for."""
        self._in_use: Counter[str] = Counter()
        self._unused: dict[str, asyncio.Event] = {}

    def replace(self, adapters: Iterable[dict[str, Any]]) -> None:
        """These, and no others, are loaded."""
        self.loaded = {adapter.lora_name: adapter for adapter in map(LoraAdapter.of, adapters)}
        ids = {adapter.lora_id for adapter in self.loaded.values()}
        self.last_used = {lora_id: at for lora_id, at in self.last_used.items() if lora_id in ids}

    def find(self, name: str) -> LoraAdapter:
        """The adapter of that name; raises RequestRejected with those there are."""
        if (adapter := self.loaded.get(name)) is None:
            raise RequestRejected(
                f"The LoRA adapter {name!r} is not loaded. Loaded adapters: {', '.join(self.loaded) or 'none'}.",
                param="lora_path",
            )
        return adapter

    def acquire(self, lora_id: str) -> None:
        """One more request of this worker uses it."""
        self._in_use[lora_id] += 1
        self.last_used[lora_id] = time.time()

    def release(self, lora_id: str) -> None:
        """One request less."""
        self._in_use[lora_id] -= 1
        if self._in_use[lora_id] <= 0:
            del self._in_use[lora_id]
            if (event := self._unused.pop(lora_id, None)) is not None:
                event.set()

    async def unused(self, lora_id: str) -> None:
        """Until no request of this worker uses it."""
        while self._in_use[lora_id]:
            await self._unused.setdefault(lora_id, asyncio.Event()).wait()
