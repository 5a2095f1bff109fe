"""The scheduler's own state, and its place among other engines."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..scheduler import Scheduler
from ..wire.structs import StandIn, make
from .family import Answer, ControlFamily, Handler, Send


class State(ControlFamily):
    """What SGLang reads back, and the few numbers that can be set."""

    def __init__(self, scheduler: Scheduler, send: Send) -> None:
        super().__init__(scheduler, send)
        self.overrides: dict[str, Any] = {}
        """Arguments that were set since the start."""
        self._started = time.time()

    def handlers(self) -> Mapping[str, Handler]:
        return {"GetInternalStateReq": self._get, "SetInternalStateReq": self._set}

    def _get(self, message: StandIn) -> Answer:
        """SGLang's answer, one per rank."""
        scheduler, contract = self._scheduler, self._scheduler.contract
        ranks = contract.features.num_dp_ranks
        state = {
            **contract.server_args,
            **self.overrides,
            "weight_version": scheduler.weight_version,
            "world_size": ranks,
            "startup_time": self._started,
            "effective_max_running_requests_per_dp": scheduler.max_running,
            "last_gen_throughput": 0.0,
            "memory_usage": {
                "weight": 0.0,
                "kvcache": 0.0,
                "startup_available": 0.0,
                "token_capacity": contract.scheduler_info["max_total_num_tokens"],
                "token_capacity_swa": None,
                "graph": {},
            },
            "disaggregation_mode": contract.features.disaggregation_mode,
        }
        # SGLang's ranks answer the same but for what they measured; this tells them apart.
        return [
            make("GetInternalStateReqOutput", internal_state={**state, "last_gen_throughput": float(rank)})
            for rank in range(ranks)
        ]

    def _set(self, message: StandIn) -> Answer:
        updated = all(self._settable(name, value) for name, value in message.server_args.items())
        if updated:
            self.overrides |= message.server_args
        return make("SetInternalStateReqOutput", updated=updated)

    def _settable(self, name: str, value: float) -> bool:
        if name == "pp_max_micro_batch_size":
            return 1 <= value <= self._scheduler.max_running
        return name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")


class Placement(ControlFamily):
    """Roles and sizes that change while the engine runs, where it was started for that."""

    def handlers(self) -> Mapping[str, Handler]:
        return {"PdRoleSwitchReqInput": self._switch_role, "ScaleElasticEPReqInput": self._scale}

    def _switch_role(self, message: StandIn) -> Answer:
        old = self._scheduler.contract.features.disaggregation_mode
        problem = self._role_problem(message.new_role, old)
        return make(
            "PdRoleSwitchReqOutput",
            success=not problem,
            message=problem or "already in target role",
            old_role=old,
            new_role=message.new_role,
            safe_to_restore=bool(problem),
        )

    def _role_problem(self, new: str, old: str) -> str:
        if not self.server_arg("enable_pd_role_switch"):
            return "--enable-pd-role-switch is not set on this instance"
        if new not in ("prefill", "decode"):
            return f"invalid new_role={new!r}"
        if old == "null":
            return "instance is not running in PD disaggregation mode"
        return "" if new == old else "decode_cuda_graph_memory_gb is required before capturing decode graphs"

    def _scale(self, message: StandIn) -> Answer:
        raise AssertionError("Elastic EP state is not initialized.")
