"""LoRA adapters: loaded through one worker, known to all."""

from __future__ import annotations

from typing import Any

from ..worker.answers.outputs import LoRAUpdateOutput
from .base import check_text
from .blocking import blocking
from .tensors import TensorCalls


class AdapterCalls(TensorCalls):
    """SGLang's Engine.load_lora_adapter and its kin."""

    def adapters(self) -> dict[str, str]:
        """The path of every adapter that is loaded now, by its name; asks nobody."""
        return {name: adapter.lora_path for name, adapter in self.worker.adapters.loaded.items()}

    async def async_load_lora_adapter(self, lora_name: str, lora_path: str, pinned: bool = False) -> LoRAUpdateOutput:
        """Load an adapter from a path that the engine can read; a failure is in the answer."""
        check_text(lora_name=lora_name, lora_path=lora_path)
        return await self.worker.lora.load(lora_name, lora_path, pinned=pinned)

    load_lora_adapter = blocking(async_load_lora_adapter)

    async def async_load_lora_adapter_from_tensors(
        self, lora_name: str, tensors: Any, config_dict: dict[str, Any], load_format: str | None = None
    ) -> LoRAUpdateOutput:
        """Load an adapter from tensors by name, or from one serialized payload per tensor-parallel rank."""
        check_text(lora_name=lora_name)
        payloads = await self.serialize_tensors(tensors, load_format)
        return await self.worker.lora.load_tensors(lora_name, config_dict, payloads, load_format)

    load_lora_adapter_from_tensors = blocking(async_load_lora_adapter_from_tensors)

    async def async_unload_lora_adapter(self, lora_name: str) -> LoRAUpdateOutput:
        """Unload an adapter once no request of any worker uses it; new ones can't from now on."""
        check_text(lora_name=lora_name)
        return await self.worker.lora.unload(lora_name)

    unload_lora_adapter = blocking(async_unload_lora_adapter)
