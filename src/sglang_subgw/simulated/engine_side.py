"""What the engine's own process does for shards, without torch: what was asked is kept, tensors stay as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ..coordination.carried_bytes import with_bytes


class EngineSide:
    """Stands for `engine.calls` of a real engine."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        """Method and arguments of every call, in the order in which they came."""
        self.calls: dict[str, Callable[[dict[str, Any], bytes], tuple[Any, bytes]]] = {
            "collective_rpc": self._collective_rpc,
            "serialize_tensors": self._serialize,
            "generate": self._generate,
            "encode": self._encode,
            "embed_parts": self._embed_parts,
            "score": self._score,
        }

    def _collective_rpc(self, arguments: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        self.asked.append(("collective_rpc", arguments))
        return None, b""

    def _serialize(self, arguments: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        self.asked.append(("serialize_tensors", arguments))
        payload = json.dumps(arguments["tensors"]).encode() + b"\0" + blob
        return [len(payload)], payload

    def _generate(self, arguments: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        self.asked.append(("generate", with_bytes(arguments, blob)))
        return {"text": "from the engine's side", "meta_info": {"id": arguments.get("rid")}}, b""

    def _encode(self, arguments: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        self.asked.append(("encode", {**arguments, "blob": blob}))
        return {"embedding": [0.5], "meta_info": {"id": arguments["given"].get("rid")}}, b""

    def _embed_parts(self, arguments: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        self.asked.append(("embed_parts", arguments))
        count = len(arguments["input"])
        return [{"embedding": [float(index)], "meta_info": {"prompt_tokens": 1}} for index in range(count)], b""

    def _score(self, arguments: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        self.asked.append(("score", {**arguments, "blob": blob}))
        return {"scores": [[0.5]], "prompt_tokens": 1, "pooled_hidden_states": None, "token_logprobs": None}, b""
