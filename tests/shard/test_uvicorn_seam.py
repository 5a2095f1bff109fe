"""The check of uvicorn at a shard's start: the installed one fits, and one that has renamed a part is told by name."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import itertools
import re
from types import ModuleType
from typing import Any

import pytest
import uvicorn

from sglang_subgw.config import GatewayConfig
from sglang_subgw.errors import DependencyError
from sglang_subgw.modes import probe_child
from sglang_subgw.shard import connection, uvicorn_seam

PROTOCOLS = {"httptools": "HttpToolsProtocol", "h11": "H11Protocol"}
IN_BOTH = ["cycle", "disconnected", "flow", "loop", "on_response", "on_response_complete", "transport", "write_paused"]
RENAMED = [(protocol, name) for protocol in PROTOCOLS for name in IN_BOTH]
RENAMED += [("httptools", "pipeline"), ("h11", "conn")]
TOLD_BY = {"on_response_complete": "can't move on", "conn": "pipeline"}
"""Of those that are missed by what they lead to."""


def edited(name: str, pattern: str, replacement: str) -> ModuleType:
    """A module of uvicorn's as if its source had been changed, under a name of its own."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    source, count = re.subn(pattern, replacement, spec.loader.get_source(name))  # type: ignore[attr-defined]
    assert count, f"{name} has no {pattern}"
    module = ModuleType(name)
    exec(compile(source, str(spec.origin), "exec"), module.__dict__)
    return module


def implementation(protocol: str) -> str:
    if protocol == "httptools":
        pytest.importorskip("httptools", exc_type=ImportError)
    return f"uvicorn.protocols.http.{protocol}_impl"


def check() -> None:
    asyncio.run(uvicorn_seam.check_uvicorn(GatewayConfig()))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_installed_one_fits(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(implementation(protocol))
    monkeypatch.setattr(connection, "HttpProtocol", getattr(module, PROTOCOLS[protocol]))
    check()


def test_a_stop_in_the_middle_of_it_is_no_error_of_the_application(caplog: pytest.LogCaptureFixture) -> None:
    sleep, step = asyncio.sleep, 0

    async def stopped_at(step: int) -> None:
        running, left = asyncio.current_task(), step
        assert running is not None

        async def counted(seconds: float) -> None:
            nonlocal left
            left -= 1
            if not left:
                running.cancel()
            await sleep(seconds)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(uvicorn_seam.asyncio, "sleep", counted)
            await uvicorn_seam.check_uvicorn(GatewayConfig())

    for step in itertools.count(1):
        try:
            asyncio.run(stopped_at(step))
        except asyncio.CancelledError:
            continue
        break
    assert step > 10
    assert not caplog.records


@pytest.mark.parametrize(("protocol", "name"), RENAMED)
def test_a_renamed_part_of_a_connection_is_told(protocol: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = edited(implementation(protocol), rf"\b{name}\b", f"{name}_2")
    if name == "write_paused":
        flow = edited("uvicorn.protocols.http.flow_control", r"\bwrite_paused\b", "write_paused_2")
        module.__dict__["FlowControl"] = flow.FlowControl
    monkeypatch.setattr(connection, "HttpProtocol", getattr(module, PROTOCOLS[protocol]))
    with pytest.raises(DependencyError) as caught:
        check()
    text = str(caught.value)
    assert f"uvicorn {uvicorn.__version__} is not as a shard needs it" in text
    assert TOLD_BY.get(name, name) in text
    assert re.search(r"pip install 'uvicorn[<>=.,\d]+'", text)


@pytest.mark.parametrize("name", sorted(uvicorn_seam._READ_BY_SERVER))
def test_a_renamed_part_of_the_server_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn, "Server", edited("uvicorn.server", rf"\b{name}\b", f"{name}_2").Server)
    with pytest.raises(DependencyError, match=f"its Server knows no {name}"):
        check()


@pytest.mark.parametrize(
    ("pattern", "replacement", "told"),
    [
        (r"self\.scope, self\.receive, self\.send", "self.scope, self.receive, lambda m: self.send(m)", "no attribute"),
        (r"self\.flow\.pause_writing\(\)", "pass", "a slow client"),
        (r"self\.cycle\.disconnected = True", "pass", "a client that leaves"),
        (r"self\.connections\.discard\(self\)", "pass", "still counts"),
    ],
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_works_in_another_way_is_told(
    protocol: str, pattern: str, replacement: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = edited(implementation(protocol), pattern, replacement)
    monkeypatch.setattr(connection, "HttpProtocol", getattr(module, PROTOCOLS[protocol]))
    with pytest.raises(DependencyError, match=told):
        check()


def test_the_probe_tells_it_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn, "Server", edited("uvicorn.server", r"\bservers\b", "listeners").Server)
    told: dict[str, Any] = {}
    probe_child._import_all(lambda event, name="", detail="": told.update({event: detail}), "", "")  # type: ignore[arg-type]
    assert "its Server knows no servers" in told["config_error"]
