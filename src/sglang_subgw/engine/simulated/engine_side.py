"""What the engine's own process does for shards, without torch: what was asked is kept, tensors become what they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


class EngineSide:
    """Stands for `engine.calls` of a real engine."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        """Method and arguments of every call, in the order in which they came."""
        self.calls: dict[str, Callable[[dict[str, Any], bytes], tuple[Any, bytes]]] = {
            "collective_rpc": self._collective_rpc,
            "serialize_tensors": self._serialize,
            "generate": self._generate,
        }

    def _collective_rpc(self, arguments: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        self.asked.append(("collective_rpc", arguments))
        return None, b""

    def _serialize(self, arguments: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        self.asked.append(("serialize_tensors", arguments))
        payload = json.dumps(arguments["tensors"]).encode() + b"\0" + blob
        return [len(payload)], payload

    def _generate(self, arguments: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        self.asked.append(("generate", arguments))
        return {"text": "from the engine's side", "meta_info": {"id": arguments.get("rid")}}, b""
