"""An engine with methods of every kind that SGLang's has, and request objects as it makes them."""

# ruff: noqa: UP007, UP045 (annotated as SGLang's)
from __future__ import annotations

import asyncio
import dataclasses
import enum
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Optional, Self, Union

import httpx
import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request

from sglang_subgw.config import GatewayConfig
from sglang_subgw.engine.engine_loop import EngineLoop
from sglang_subgw.engine.routes.address import bind_for
from sglang_subgw.engine.routes.start import start_admin
from support import engine_fakes

if TYPE_CHECKING:
    from nowhere import TypeCheckersOnly

SECONDS = 10


class BaseReq(msgspec.Struct, tag=True, kw_only=True, array_like=True):
    """As SGLang's."""

    rid: str | list[str] | None = None
    http_worker_ipc: str | None = None


class PauseReq(BaseReq, kw_only=True):
    mode: Literal["abort", "retract", "in_place"] = "abort"


class OpenSessionReq(BaseReq, kw_only=True):
    capacity_of_str_len: int
    session_id: str | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.capacity_of_str_len < 1:
            raise ValueError("capacity_of_str_len must be positive")


@dataclasses.dataclass
class GenerateReq:
    text: Optional[Union[list[str], str]] = None
    input_ids: Optional[Union[list[list[int]], list[int]]] = None
    stream: bool = False


@dataclasses.dataclass
class EncodeReq:
    image: str


class Color(enum.Enum):
    RED = "red"


class Answer(msgspec.Struct):
    success: bool
    ids: tuple[int, ...] = (1, 2)
    data: bytes = b"\x00\x01"
    color: Color = Color.RED


class Manager(engine_fakes.Manager):
    """Everything in it happens on its loop."""

    ready = True
    answer_class = Answer

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Any]] = []
        self.began = threading.Event()
        self.ended = threading.Event()

    @property
    def is_pause(self) -> bool:
        raise AssertionError("nobody may look at it")

    def _noted(self, name: str, value: Any) -> None:
        assert asyncio.get_running_loop() is self.event_loop
        self.calls.append((name, value))

    async def flush_cache(self, timeout_s: Optional[float] = None) -> Answer:
        self._noted("flush_cache", timeout_s)
        return Answer(success=True)

    async def pause_generation(self: TypeCheckersOnly, obj: PauseReq) -> None:
        self._noted("pause_generation", obj)

    async def open_session(self, obj: OpenSessionReq, request: Optional[Request] = None) -> str:
        self._noted("open_session", (obj, request))
        return obj.session_id or "new"

    async def start_profile(self, req: Optional[PauseReq] = None) -> None:
        self._noted("start_profile", req)

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        self._noted("abort_request", (rid, abort_all))

    async def generate_request(
        self, obj: Union[GenerateReq, EncodeReq], request: Optional[Request] = None
    ) -> AsyncIterator[dict[str, Any]]:
        self._noted("generate_request", obj)
        if obj == GenerateReq(stream=True):
            raise ValueError("text or input_ids is needed")
        try:
            yield {"text": "a"}
            if isinstance(obj, GenerateReq) and obj.text == "endless":
                await asyncio.Event().wait()
            if isinstance(obj, GenerateReq) and obj.text == "broken":
                raise ValueError("after a")
            yield {"text": "ab"}
        finally:
            self.ended.set()

    async def wait_for_ever(self) -> None:
        self.began.set()
        await asyncio.Event().wait()


class Engine(engine_fakes.Engine):
    tokenizer_manager: Manager

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.tokenizer_manager = Manager()
        self.partial_result: Any = None
        self.hang = threading.Event()
        self.hung = threading.Event()

    def flush_cache(self) -> Answer:
        return self.do(self.tokenizer_manager.flush_cache())

    def get_weights_by_name(self, name: str, truncate_size: int = 100) -> list[Any]:
        assert threading.current_thread() is not threading.main_thread()
        return [name, truncate_size]

    def start_profile(self, **kwargs: Any) -> dict[str, Any]:
        return kwargs

    def generate(self, prompt: str, stream: bool = False) -> dict[str, Any] | Iterator[dict[str, Any]]:
        return ({"text": prompt[: i + 1]} for i in range(len(prompt))) if stream else {"text": prompt}

    async def async_generate(self, prompt: str, stream: bool = False) -> Any:
        items = self.tokenizer_manager.generate_request(GenerateReq(text=prompt))
        return items if stream else await anext(items)

    def partial(self) -> Any:
        return self.partial_result

    def fail(self, kind: str, text: str = "") -> None:
        if kind == "HTTPException":
            raise HTTPException(409, "in the way")
        raise {"ValueError": ValueError, "AssertionError": AssertionError, "OSError": OSError}[kind](text)

    def by_position(self, name: str, /) -> None:
        raise AssertionError

    def wait_in_thread(self) -> None:
        self.hung.set()
        self.hang.wait(30)


def client_of(url: str) -> httpx.Client:
    """A client of the listener there."""
    if url.startswith("unix:"):
        transport = httpx.HTTPTransport(uds=url.removeprefix("unix:"))
        return httpx.Client(transport=transport, base_url="http://localhost", timeout=SECONDS)
    return httpx.Client(base_url=url, timeout=SECONDS)


class Running:
    """A context with a listener for the routes; `engine` and `loop` are those of a RunningEngine."""

    def __init__(self, directory: Path, *routes: str, listen: str = "") -> None:
        self.engine = Engine(asyncio.new_event_loop())
        self.loop = EngineLoop(self.engine)
        self._config = GatewayConfig(engine_routes=routes, admin_listen=listen, max_body_bytes=10_000)
        self._directory = directory
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as ends:
            ends.callback(self.loop.loop.close)
            ends.callback(self.loop.close)
            self.loop.start()
            self.listener = start_admin(self._config, self, bind_for(self._config), self._directory)
            ends.callback(self.listener.close)
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ends.close()
