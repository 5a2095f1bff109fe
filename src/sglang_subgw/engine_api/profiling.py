"""Profiles, and records of which experts were used."""

from __future__ import annotations

import os
import time
from typing import Any, Final

from ..errors import EngineRejected, RequestRejected
from ..wire.message import EnumMember
from .base import EngineCalls
from .blocking import blocking

_START, _STOP, _DUMP = 1, 2, 3
_OFF: Final = ("0", "false", "f", "n", "no", "off")


class ProfileCalls(EngineCalls):
    """SGLang's Engine.start_profile, stop_profile and expert-distribution records."""

    async def async_start_profile(self, **kwargs: Any) -> None:
        """Start with the fields of SGLang's ProfileReq; raises EngineRejected with the engine's reason."""
        known = {name for name, _ in self.contract.wire.schema["ProfileReq"]} - {"rid", "http_worker_ipc", "req_type"}
        if unknown := kwargs.keys() - known:
            raise RequestRejected(f"There is no parameter {min(unknown)!r}, only {', '.join(sorted(known))}.")
        fields = {
            **kwargs,
            "with_stack": kwargs.get("with_stack") is not False and _on("SGLANG_PROFILE_WITH_STACK"),
            "record_shapes": kwargs.get("record_shapes") is not False and _on("SGLANG_PROFILE_RECORD_SHAPES"),
            "profile_id": kwargs.get("profile_id") or str(time.time()),
        }
        await self._profile(_START, fields)

    start_profile = blocking(async_start_profile)

    async def async_stop_profile(self) -> None:
        """Stop it and write the traces; raises EngineRejected when none runs."""
        await self._profile(_STOP, {})

    stop_profile = blocking(async_stop_profile)

    async def async_start_expert_distribution_record(self) -> None:
        """Begin to count which experts are used."""
        await self._record(_START)

    start_expert_distribution_record = blocking(async_start_expert_distribution_record)

    async def async_stop_expert_distribution_record(self) -> None:
        """Stop counting."""
        await self._record(_STOP)

    stop_expert_distribution_record = blocking(async_stop_expert_distribution_record)

    async def async_dump_expert_distribution_record(self) -> None:
        """Write the counts to a file of the engine's."""
        await self._record(_DUMP)

    dump_expert_distribution_record = blocking(async_dump_expert_distribution_record)

    async def _profile(self, action: int, fields: dict[str, Any]) -> None:
        fields = {"req_type": EnumMember("ProfileReqType", action), **fields}
        answers = await self.control.ask("ProfileReq", fields, "ProfileReqOutput", None)
        if not answers[0].get("success"):
            raise EngineRejected(str(answers[0].get("message")), status=400)

    async def _record(self, action: int) -> None:
        if not self.contract.server_args.get("expert_distribution_recorder_mode"):
            # A scheduler without a recorder ends at this.
            raise RequestRejected("The engine records no experts: start it with --expert-distribution-recorder-mode.")
        fields = {"action": EnumMember("ExpertDistributionReqType", action)}
        await self.control.ask("ExpertDistributionReq", fields, "ExpertDistributionReqOutput", None)


def _on(name: str) -> bool:
    return os.environ.get(name, "true").lower() not in _OFF
