"""Sessions of the simulated scheduler: a request goes on from an earlier one's prompt and output, as in SGLang's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from .generation import SimulatedGeneration
from .tokenizer import ByteTokenizer
from .wire.structs import StandIn


class Sessions:
    """The open sessions, by id."""

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        self._sessions: dict[str, _Session] = {}
        self._bos = tokenizer.special_ids["<|bos|>"]

    def __contains__(self, name: object) -> bool:
        return name in self._sessions

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._sessions))

    def open(self, name: str | None, *, streaming: bool, timeout: float | None) -> bool:
        """Open one; False if there is no name, or the name is taken."""
        if name is None or name in self._sessions:
            return False
        self._sessions[name] = _Session(streaming=streaming, timeout=timeout)
        return True

    def close(self, name: str) -> None:
        """Close one; a streaming one waits for its request. An unknown name is nothing."""
        session = self._sessions.get(name)
        if session is None:
            return
        if session.busy:
            session.closing = True
        else:
            del self._sessions[name]

    def reap(self) -> None:
        """Close those whose time without a request is over, and those that waited for their request."""
        now = time.monotonic()
        for name, session in list(self._sessions.items()):
            if (session.closing and not session.busy) or now > session.expires:
                del self._sessions[name]

    def prompt(self, request: StandIn) -> tuple[list[int], str]:
        """The whole prompt that a request of a session means, and why it can't be answered, "" if it can."""
        params = request.session_params
        session = self._sessions.get(params.id)
        if session is None:
            return [], f"Invalid request: session id {params.id} does not exist"
        if session.closing:
            return [], f"Invalid request: close was requested for session {params.id}"
        last, problem = session.predecessor(params)
        if problem:
            return [], problem
        ids = list(request.input_ids)
        if last is not None:
            if ids[:1] == [self._bos]:
                del ids[0]
            ids = _history(last, params) + ids
        return ids, "" if ids else "A session request must contain input tokens after restoring history."

    def started(self, generation: SimulatedGeneration) -> None:
        """The session's request is in the queue."""
        params = generation.request.session_params
        if params is None or (session := self._sessions.get(params.id)) is None:
            return
        session.touch()
        parent = None if session.streaming else session.nodes.get(params.rid or "")
        node = session.nodes[generation.rid] = _Node(generation)
        if parent is not None:
            parent.children.append(node)


class _Session:
    def __init__(self, *, streaming: bool, timeout: float | None) -> None:
        self.streaming = streaming
        self.closing = False
        self.expires = float("inf")
        self.nodes: dict[str, _Node] = {}
        self._timeout = timeout
        self.touch()

    @property
    def busy(self) -> bool:
        """A streaming session's only request has not ended."""
        return self.streaming and any(node.generation.finish_reason is None for node in self.nodes.values())

    def touch(self) -> None:
        if self._timeout is not None:
            self.expires = time.monotonic() + self._timeout

    def predecessor(self, params: StandIn) -> tuple[SimulatedGeneration | None, str]:
        """The generation that a request goes on from."""
        if self.streaming:
            return self._streaming_predecessor(params)
        if params.rid is None:
            if params.replace:
                self._drop(list(self.nodes.values()))
            return None, ""
        node = self.nodes.get(params.rid)
        if node is None:
            return None, "Invalid request session id"
        if params.replace:
            node.generation.abort()
            self._drop(node.children)
            node.children = []
        elif node.generation.finish_reason is None:
            return None, "Session request is appending to a request that hasn't finished."
        return node.generation, ""

    def _streaming_predecessor(self, params: StandIn) -> tuple[SimulatedGeneration | None, str]:
        if self.busy:
            return None, "Streaming session already has an active request."
        for name in ("replace", "drop_previous_output", "offset"):
            if getattr(params, name):
                return None, f"Streaming sessions do not support {name}."
        good = (node.generation for node in reversed(self.nodes.values()) if not node.generation.aborted)
        return next(good, None), ""

    def _drop(self, nodes: list[_Node]) -> None:
        for node in nodes:
            node.generation.abort()
            self._drop(node.children)
            self.nodes.pop(node.generation.rid, None)


class _Node:
    def __init__(self, generation: SimulatedGeneration) -> None:
        self.generation = generation
        self.children: list[_Node] = []


def _history(last: SimulatedGeneration, params: Any) -> list[int]:
    history = list(last.prompt)
    if not params.drop_previous_output:
        history += last.output[: last.params.max_new_tokens]
    return history[: params.offset] if params.offset else history
