"""Engine routes on an engine: the methods that are meant, and what is said of one that isn't there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("msgspec")

from sglang_subgw.engine.routes.resolve import resolve
from sglang_subgw.engine_routes import EngineRoute, parse_routes
from sglang_subgw.errors import ConfigError

if TYPE_CHECKING:
    from support.admin_fakes import Engine


@pytest.fixture
def engine() -> Iterator[Engine]:
    from support.admin_fakes import Engine

    loop = asyncio.new_event_loop()
    yield Engine(loop)
    loop.close()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("/flush_cach", "flush_cach of sglang.Engine is no such method. Did you mean flush_cache?"),
        ("/flush_cachee:tm", "flush_cachee of the tokenizer manager is no such method. Did you mean flush_cache?"),
        (
            "/x=zzz",
            "zzz of sglang.Engine is no such method. It has async_generate, by_position, do, fail, flush_cache,",
        ),
        (
            "/pause_generation",
            "pause_generation of sglang.Engine is no such method. It is one of the tokenizer manager: "
            "/pause_generation=pause_generation:tm.",
        ),
        (
            "/x=generate:tm",
            "generate of the tokenizer manager is no such method. It is one of sglang.Engine: /x=generate",
        ),
        ("/partial_result", "partial_result of sglang.Engine is a NoneType, not a method. Did you mean partial?"),
        ("/tokenizer_manager", "tokenizer_manager of sglang.Engine is a Manager, not a method."),
        ("/ready:tm", "ready of the tokenizer manager is a bool, not a method."),
        ("/is_pause:tm", "is_pause of the tokenizer manager is a property, not a method."),
        ("/answer_class:tm", "answer_class of the tokenizer manager is a class, not a method."),
        ("/calls:tm", "calls of the tokenizer manager is a list, not a method."),
        ("/by_position", "by_position can't be called by keywords: it takes name by position."),
    ],
)
def test_a_method_that_is_not_there_is_named_with_what_is(engine: Engine, text: str, problem: str) -> None:
    route = str(EngineRoute.parse(text))
    with pytest.raises(ConfigError, match=re.escape(f"Engine route {route!r}: {problem}")):
        resolve(parse_routes(["/flush_cache", text]), engine)


def test_what_is_put_around_a_method_is_called_and_the_method_itself_is_read(engine: Engine) -> None:
    (method,) = resolve(parse_routes(["/pause_generation:tm"]), engine)

    async def around(*args: Any, **kwargs: Any) -> None: ...

    engine.tokenizer_manager.pause_generation = around
    (again,) = resolve(parse_routes(["/pause_generation:tm"]), engine)
    assert method.call is again.call is around
    assert again.parameters.names == method.parameters.names == {"rid": False, "mode": False}


def test_methods_are_found_with_where_they_run_and_what_they_need(engine: Engine) -> None:
    routes = ["/flush-cache", "/f=flush_cache:tm", "/abort_request:tm", "/async_generate", "/open_session:tm"]
    methods = resolve(parse_routes(routes), engine)
    assert [method.on_loop for method in methods] == [False, True, True, True, True]
    assert [method.http_methods for method in methods] == [("GET", "POST")] * 3 + [("POST",)] * 2
