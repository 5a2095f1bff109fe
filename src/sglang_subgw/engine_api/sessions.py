"""Sessions: they belong to the engine, so that each works through every shard."""

from __future__ import annotations

import uuid

from ..errors import RequestRejected
from .base import EngineCalls
from .blocking import blocking


class SessionCalls(EngineCalls):
    """SGLang's Engine.open_session and close_session."""

    async def async_open_session(
        self,
        capacity_of_str_len: int,
        session_id: str | None = None,
        streaming: bool = False,
        timeout: float | None = None,
    ) -> str | None:
        """The session's id, made if none is given; None for one that is open already."""
        if streaming and not self.contract.features.enable_streaming_session:
            raise RequestRejected(
                "Streaming sessions are disabled. Please relaunch with --enable-streaming-session.", param="streaming"
            )
        session_id = uuid.uuid4().hex if session_id is None else session_id
        fields = {
            "capacity_of_str_len": capacity_of_str_len,
            "session_id": session_id,
            "streaming": streaming,
            "timeout": None if timeout is None else float(timeout),
        }
        answers = await self.control.ask("OpenSessionReqInput", fields, "OpenSessionReqOutput", None)
        return session_id if all(answer.get("success") for answer in answers) else None

    open_session = blocking(async_open_session)

    async def async_close_session(self, session_id: str) -> None:
        """Release what the engine keeps of it; nothing is answered, also not for an unknown one."""
        self.worker.send("CloseSessionReqInput", {"session_id": session_id})

    close_session = blocking(async_close_session)
