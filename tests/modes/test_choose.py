"""The choice of the mode, for real: each module as an import of the user's application."""

from __future__ import annotations

import importlib.util
import logging
import re
import sys
import sysconfig
from pathlib import Path

import pytest

from sglang_subgw.config import GatewayConfig, Mode
from sglang_subgw.errors import ConfigError, ModeUnavailable
from sglang_subgw.modes.choose import choose
from sglang_subgw.modes.probe import Status, probe
from support.stack import running_stack

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
needs_gil = pytest.mark.skipif(FREE_THREADED, reason="a free-threaded build chooses between thread and process")
README = Path(__file__).parents[2] / "README.md"

TABLE = {  # what `auto` does with an application that imports each of these: the README's table
    "pyzmq": ("zmq", Status.IMAGE, Mode.SUBINTERP),
    "msgspec": ("msgspec", Status.IMAGE, Mode.SUBINTERP),
    "tokenizers": ("tokenizers", Status.IMAGE, Mode.SUBINTERP),
    "pydantic_core": ("pydantic_core", Status.IMAGE, Mode.SUBINTERP),
    "orjson": ("orjson", Status.IMAGE, Mode.SUBINTERP),
    "httptools": ("httptools", Status.IMAGE, Mode.SUBINTERP),
    "uvloop": ("uvloop", Status.IMAGE, Mode.SUBINTERP),
    "numpy": ("numpy", Status.IMAGE, Mode.SUBINTERP),
    "regex": ("regex", Status.IMAGE, Mode.SUBINTERP),
    "psutil": ("psutil", Status.IMAGE, Mode.SUBINTERP),
    "torch": ("torch", Status.CRASHED, Mode.PROCESS),
}
UNUSABLE = {Status.CRASHED, Status.REFUSED}
"""torch's second set-up in a process either crashes it or is refused by CPython, by chance: what is kept differs."""


APP = """
import {module}

async def app(scope, receive, send):
    assert scope["type"] == "http"
    await send({{"type": "http.response.start", "status": 200, "headers": []}})
    await send({{"type": "http.response.body", "body": {module}.__name__.encode()}})
"""


def _app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    name = f"user_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return f"{name}:app"


@needs_gil
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.sglang if n == "torch" else ()) for n in TABLE])
def test_auto_does_what_the_table_says(name, tmp_path, monkeypatch, runtime_dir):
    module, status, mode = TABLE[name]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    app = _app(tmp_path, monkeypatch, APP.format(module=module))
    with running_stack(runtime_dir, Mode.AUTO, config={"app": app}) as stack:
        assert stack.gateway.config.mode is mode
        found = {m.name: m.status for m in stack.gateway.choice.report.modules}
        if status in UNUSABLE:
            assert {found[name] for name in found if name.partition(".")[0] == module} & UNUSABLE
            assert module in stack.gateway.choice.reason
        else:
            assert found[module] is status
        for _ in range(4):
            with stack.client() as client:
                assert client.get("/").text == module


def test_the_readmes_table_says_the_same():
    rows = dict(re.findall(r"^\| `?(\w+)`? \| [^|]* \| `(\w+)` \|", README.read_text(), re.MULTILINE))
    assert rows == {name: str(mode) for name, (_, _, mode) in TABLE.items()}


@needs_gil
def test_auto_without_an_application_is_subinterp(caplog):
    caplog.set_level(logging.INFO)
    choice = choose(GatewayConfig())
    assert choice.apply(GatewayConfig()).mode is Mode.SUBINTERP
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == ["Mode subinterp"]
    assert {m.status for m in choice.report.modules} <= {Status.NATIVE, Status.IMAGE, Status.MISSING}


@pytest.mark.skipif(not FREE_THREADED, reason="needs a free-threaded build")
def test_auto_is_thread_where_the_gil_stays_off():
    choice = choose(GatewayConfig())
    if sys._is_gil_enabled() or choice.report.gil:
        assert choice.mode is Mode.PROCESS
    else:
        assert choice.mode is Mode.THREAD


@needs_gil
@pytest.mark.parametrize("words", ["off", "auto,-httptools"])
def test_without_the_images_that_a_shard_wants_auto_is_process_and_says_why(words, caplog):
    pytest.importorskip("httptools")
    config = GatewayConfig(images=words)
    assert choose(config).apply(config).mode is Mode.PROCESS
    (line,) = caplog.records
    assert re.search(r"httptools \(refused\): httptools\.parser", line.getMessage())


def test_an_explicit_mode_that_can_not_be_fails_by_name_and_the_fallback_permits(caplog):
    pytest.importorskip("fastapi")
    settings = {"mode": Mode.SUBINTERP, "images": "auto,-pydantic_core", "app": "support.apps.fast:app"}
    with pytest.raises(ModeUnavailable, match=r"pydantic_core\._pydantic_core is refused.*--fallback process"):
        choose(GatewayConfig(**settings))
    config = GatewayConfig(**settings, fallback="process")
    assert choose(config).apply(config).mode is Mode.PROCESS
    assert "pydantic_core" in caplog.text


OPTIONAL_IMPORT = """
try:
    import httptools
except ImportError:
    httptools = None

async def app(scope, receive, send): ...
"""


@needs_gil
def test_what_an_application_goes_without_decides_auto_and_warns_an_explicit_mode(tmp_path, monkeypatch, caplog):
    pytest.importorskip("httptools")
    app = _app(tmp_path, monkeypatch, OPTIONAL_IMPORT)
    auto = choose(GatewayConfig(images="auto,-httptools", app=app))
    assert auto.mode is Mode.PROCESS
    assert "httptools" in auto.reason
    config = GatewayConfig(images="auto,-httptools", app=app, mode=Mode.SUBINTERP)
    assert choose(config).apply(config).mode is Mode.SUBINTERP
    assert "httptools" in caplog.text


@needs_gil
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("abort", r"crashed \(SIGABRT\) while it imported support\.apps\.hostile"),
        ("raise", r"RuntimeError: no interpreters, please"),
    ],
)
def test_a_module_that_only_an_ordinary_process_can_have(what, said, monkeypatch):
    monkeypatch.setenv("SUBGW_TEST_HOSTILE", what)
    choice = choose(GatewayConfig(app="support.apps.hostile:app"))
    assert choice.mode is Mode.PROCESS
    assert re.search(said, choice.reason)
    with pytest.raises(ModeUnavailable, match=said):
        choose(GatewayConfig(app="support.apps.hostile:app", mode=Mode.SUBINTERP))


@needs_gil
def test_a_module_that_hangs_in_an_interpreter_is_named_in_time(monkeypatch):
    monkeypatch.setenv("SUBGW_TEST_HOSTILE", "hang")
    report = probe("support.apps.hostile:app", "auto", isolated=True, timeout=12)
    assert report.failure == "It was not through within 12 s, while it imported support.apps.hostile."


@pytest.mark.parametrize("mode", list(Mode))
def test_an_application_that_fails_anywhere_is_not_a_matter_of_the_mode(mode, tmp_path, monkeypatch):
    app = _app(tmp_path, monkeypatch, "import no_such_module\n")
    with pytest.raises(ConfigError, match=r"can't be imported: ModuleNotFoundError: No module named 'no_such_module'"):
        choose(GatewayConfig(app=app, mode=mode))


@needs_gil
def test_thread_mode_under_a_gil_warns(caplog):
    config = GatewayConfig(mode=Mode.THREAD)
    assert choose(config).apply(config).mode is Mode.THREAD
    assert "this Python has a GIL" in caplog.text


@needs_gil
def test_the_mode_that_was_asked_for_needs_no_probe_where_it_is_known_to_work():
    assert choose(GatewayConfig(mode=Mode.SUBINTERP)).report is None
    assert choose(GatewayConfig(mode=Mode.PROCESS)).report is None
