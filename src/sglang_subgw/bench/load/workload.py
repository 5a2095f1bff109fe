"""What load is put on: groups of connections that send one kind of request over and over."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ...errors import ConfigError

FORMATS: Final = ("chat", "completions", "generate", "probe")
_PATHS: Final = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "generate": "/generate"}
_PROBED: Final = "/model_info"
"""A route that asks nothing of the engine: how long it takes is how long the server's loop was busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Connections that do the same; raises ConfigError for what can't be sent."""

    name: str = "streams"
    connections: int = 64
    format: str = "chat"
    stream: bool = True
    prompt_tokens: int = 32
    prompt_bytes: int = 0
    """In place of a number of tokens."""
    max_tokens: int = 1 << 16
    """More than a run lasts: the request is left behind when the run ends."""
    tokens_per_event: int = 1
    """How many the engine gathers for each event, which it does for /generate: streams that began at different times
    then have their events at different steps."""
    reconnect: bool = False
    """A new connection for each request."""
    pause_seconds: float = 0.0
    """Between an answer and the next request."""
    bytes_per_second: int = 0
    """How fast each connection reads; 0 for all there is."""
    look_seconds: float = 0.0
    """How often each connection reads what has come; 0 for at once."""
    background: bool = False
    """Load beside what is measured: its events and times are kept apart."""

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(f"format must be one of {', '.join(FORMATS)}, not {self.format!r}")
        for name in ("connections", "prompt_tokens", "max_tokens", "tokens_per_event"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.tokens_per_event > 1 and self.format != "generate":
            raise ConfigError(f"tokens_per_event is for the format generate, not {self.format}")

    def request(self, prompt: str, model: str, host: str) -> bytes:
        """The whole HTTP request."""
        if self.format == "probe":
            return f"GET {_PROBED} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        body = json.dumps(self._body(prompt, model)).encode()
        head = (
            f"POST {_PATHS[self.format]} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def _body(self, prompt: str, model: str) -> dict[str, Any]:
        if self.format == "generate":
            sampling = {"max_new_tokens": self.max_tokens, "temperature": 0, "ignore_eos": True}
            if self.tokens_per_event > 1:
                sampling["stream_interval"] = self.tokens_per_event
            return {"text": prompt, "sampling_params": sampling, "stream": self.stream}
        common = {
            "model": model,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": self.stream,
        }
        if self.format == "completions":
            return {**common, "prompt": prompt}
        return {**common, "messages": [{"role": "user", "content": prompt}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one run does."""

    groups: tuple[Group, ...]
    step_seconds: float = 0.02
    """Between two tokens of each stream."""
    warm_seconds: float = 1.0
    seconds: float = 5.0
    """How long is measured."""

    @property
    def connections(self) -> int:
        """Of all groups."""
        return sum(group.connections for group in self.groups)

    def split(self, count: int) -> list[Workload]:
        """The same load in so many parts."""
        parts = []
        for i in range(count):
            groups = [
                dataclasses.replace(group, connections=share)
                for group in self.groups
                if (share := group.connections // count + (i < group.connections % count))
            ]
            if groups:
                parts.append(dataclasses.replace(self, groups=tuple(groups)))
        return parts

    def to_load(self, address: tuple[str, int], model: str, prompt: Callable[[Group], str]) -> dict[str, Any]:
        """The settings of a load generator; `prompt` makes a group's."""
        host = f"{address[0]}:{address[1]}"
        return {
            "address": list(address),
            "groups": [
                {
                    **dataclasses.asdict(group),
                    "request": group.request(prompt(group), model, host).decode(),
                    # Between two of a stream, as the engine makes them.
                    "event_seconds": self.step_seconds * group.tokens_per_event,
                }
                for group in self.groups
            ],
        }
