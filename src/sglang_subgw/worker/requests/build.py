"""From a prompt to generate from, checked, to the fields of the message that carries it."""

from __future__ import annotations

from array import array
from typing import Any, Final

from ...contract import EngineContract
from ...wire.message import Struct
from .expand import Prompt
from .ready import Ready, names_adapters, priority_of
from .request import GenerateRequest
from .routing import FAKE_HOST, rank_of

KIND: Final = "TokenizedGenerateReqInput"
BATCH_KIND: Final = "BatchTokenizedGenerateReqInput"


class Builder:
    """Builds one shard's messages: the return address is in each from the start."""

    def __init__(self, contract: EngineContract, endpoint: str) -> None:
        self._features = contract.features
        self._endpoint = endpoint
        self._fake_rooms = 0
        self._named_adapters = names_adapters(contract, KIND)

    def build(
        self, request: GenerateRequest, prompt: Prompt, ids: array[int], sampling: dict[str, Any]
    ) -> Ready[Prompt]:
        """The message of one prompt."""
        fields: dict[str, Any] = {
            "http_worker_ipc": self._endpoint,
            "input_text": None,
            "input_ids": ids,
            "input_embeds": None,
            "mm_inputs": None,
            "token_type_ids": None,
            "return_logprob": prompt.return_logprob,
            "logprob_start_len": prompt.logprob_start_len,
            "top_logprobs_num": prompt.top_logprobs_num,
            "token_ids_logprob": prompt.token_ids_logprob,
            "stream": request.stream,
        }
        optional: dict[str, Any] = {
            "return_hidden_states": prompt.return_hidden_states or None,
            "return_routed_experts": request.return_routed_experts or None,
            "routed_experts_start_len": request.routed_experts_start_len or None,
            "return_indexer_topk": request.return_indexer_topk or None,
            "session_id": request.session_id,
            "session_params": _session(request.session_params),
            "lora_name": prompt.lora_path if self._named_adapters else None,
            "custom_logit_processor": prompt.custom_logit_processor or None,
            "bootstrap_host": self._host(prompt),
            "bootstrap_port": prompt.bootstrap_port,
            "bootstrap_room": self._room(prompt),
            "routed_dp_rank": rank_of(request),
            "disagg_prefill_dp_rank": request.disagg_prefill_dp_rank,
            "routing_key": request.routing_key,
            "require_reasoning": request.require_reasoning or None,
            "priority": priority_of(request.priority, self._features),
            "extra_key": prompt.extra_key,
            "cache_salt": prompt.cache_salt,
            "multi_item_delimiter_indices": prompt.multi_item_delimiter_indices,
            "token_indices_to_pool": prompt.token_indices_to_pool,
        }
        fields.update((name, value) for name, value in optional.items() if value is not None)
        return Ready(prompt, ids, sampling, fields)

    def _host(self, prompt: Prompt) -> str | None:
        features = self._features
        if (features.disaggregation_mode, features.disaggregation_transfer_backend) == ("decode", "fake"):
            # The scheduler means the same without one, and ends by it.
            return prompt.bootstrap_host or FAKE_HOST
        return prompt.bootstrap_host

    def _room(self, prompt: Prompt) -> int | None:
        if prompt.bootstrap_room is None and self._features.disaggregation_transfer_backend == "fake":
            self._fake_rooms += 1
            return self._fake_rooms - 1
        return prompt.bootstrap_room


def _session(params: dict[str, Any] | None) -> Struct | None:
    return Struct("SessionParams", dict(params)) if params else None
