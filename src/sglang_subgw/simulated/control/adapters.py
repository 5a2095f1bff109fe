"""LoRA adapters: what SGLang's LoRAManager answers, and what ends it."""

from __future__ import annotations

from collections.abc import Mapping

from ..model import Adapter, digest, path_mark
from ..wire.structs import StandIn, make
from .family import Answer, ControlFamily, Handler


class Adapters(ControlFamily):
    """The adapters are the model's; here they come and go."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "LoadLoRAAdapterReqInput": self._load,
            "LoadLoRAAdapterFromTensorsReqInput": self._load_tensors,
            "UnloadLoRAAdapterReqInput": self._unload,
        }

    @property
    def loaded(self) -> dict[str, str]:
        """By name, the path that each was loaded from."""
        return {adapter.name: adapter.path for adapter in self._scheduler.model.adapters.values()}

    def _load(self, message: StandIn) -> Answer:
        self._check(message)
        try:
            mark = path_mark(message.lora_path)
        except OSError as exc:
            return self._answer(str(exc))
        return self._add(message, message.lora_path, mark)

    def _load_tensors(self, message: StandIn) -> Answer:
        self._check(message)
        own = message.serialized_named_tensors[0]
        return self._add(message, "__tensor__", digest(own.hex(), message.config_dict))

    def _unload(self, message: StandIn) -> Answer:
        self._check_on()
        if users := self._scheduler.uses(message.lora_id):
            self._scheduler.violations.append(f"{message.lora_name} is unloaded while {', '.join(users)} use it")
        # SGLang answers an unload of something unknown with success as well.
        self._scheduler.model.adapters.pop(message.lora_id, None)
        return self._answer()

    def _add(self, message: StandIn, path: str, mark: str) -> Answer:
        adapters = self._scheduler.model.adapters
        name, limit = message.lora_name, self.server_arg("max_loras_per_batch") or 8
        if name in self.loaded:
            return self._answer(f"Failed to load LoRA adapter {name} because it is already loaded")
        if message.pinned and sum(adapter.pinned for adapter in adapters.values()) >= limit - 1:
            return self._answer(
                f"Failed to load LoRA adapter {name} as a pinned adapter. It is not allowed to pin all slots in the "
                "LoRA memory pool to avoid starvation for unpinned adapters and base models. Please increase your "
                "`--max-loras-per-batch` or load it as unpinned LoRA adapters."
            )
        adapters[message.lora_id] = Adapter(name, path, message.pinned, mark)
        return self._answer()

    def _check_on(self) -> None:
        if not self._scheduler.contract.features.enable_lora:
            raise AttributeError("'NoneType' object has no attribute 'load_lora_adapter'")

    def _check(self, message: StandIn) -> None:
        self._check_on()
        if message.lora_id is None:
            raise ValueError("lora_id cannot be None")
        if message.lora_id in self._scheduler.model.adapters:
            raise AssertionError(f"LoRA adapter with ID {message.lora_id} is already loaded.")

    def _answer(self, problem: str = "") -> StandIn:
        return make("LoRAUpdateOutput", success=not problem, error_message=problem, loaded_adapters=self.loaded)
