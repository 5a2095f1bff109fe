"""Calls of ShardEngine's methods, by an application in the shards of a gateway."""

from __future__ import annotations

from typing import Any, Final

import httpx

from sglang_subgw.simulated.control import ControlPlane

from .stack import Stack, generate_body

PLAIN: Final = "ab" * 8
"""What the weights that the engine started with make of "ab"."""
SETTINGS: Final[dict[str, Any]] = {
    "config": {"app": "support.apps.control:app"},
    "features": {"enable_lora": True, "enable_streaming_session": True},
    "server_args": {
        "expert_distribution_recorder_mode": "stat",
        "gc_threshold": [700, 10, 10],
        "load_format": "auto",
    },
}
"""A gateway with that application, and an engine with everything on."""
GROUP: Final = {
    "master_address": "127.0.0.1",
    "master_port": 29500,
    "rank_offset": 1,
    "world_size": 2,
    "group_name": "trainer",
}
DISTRIBUTED: Final = {"names": ["w"], "dtypes": ["float32"], "shapes": [[2, 2]], "group_name": "trainer"}
SERIALIZED: Final = {"load_format": "flattened_bucket"}
"""Tensors are given as payloads, which JSON carries as base64."""


class Caller:
    """Calls methods in the shards, each time in the next one."""

    def __init__(self, stack: Stack, clients: list[httpx.Client], form: str) -> None:
        self.stack = stack
        self.clients = clients
        self._form = form
        self._count = 0

    @property
    def control(self) -> ControlPlane:
        """What the engine has seen and done."""
        return self.stack.engine.control

    def raw(self, method: str, arguments: dict[str, Any], **query: Any) -> Any:
        """The whole answer to one call."""
        self._count += 1
        client = self.clients[self._count % len(self.clients)]
        return ask(client, self._form + method, arguments, **query)

    def __call__(self, method: str, /, **arguments: Any) -> Any:
        """The result of one call."""
        answer = self.raw(method, arguments)
        assert "result" in answer, answer
        return answer["result"]

    def refusal(self, method: str, /, **arguments: Any) -> tuple[str, int]:
        """Why one call was refused, and with which status."""
        answer = self.raw(method, arguments)
        assert "refused" in answer, answer
        return answer["refused"], answer["status"]

    def texts(self, **fields: Any) -> set[str]:
        """What every shard answers, which shows the weights and the adapter."""
        return {str(self.generate(client, **fields)["text"]) for client in self.clients}

    def generate(self, client: httpx.Client, **fields: Any) -> Any:
        answer = client.post("/generate", json=generate_body("ab", 16) | fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def restore(self) -> None:
        """The engine as it was."""
        self("update_weights_from_disk", model_path="simulated-model", weight_version="default")


def ask(client: httpx.Client, method: str, arguments: dict[str, Any], **query: Any) -> Any:
    answer = client.post(f"/call/{method}", json=arguments, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()
