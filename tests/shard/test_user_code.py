"""The names by which shards import application objects."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_subgw.errors import ConfigError
from sglang_subgw.shard.user_code import find_app, find_serve, name_of

SERVICE = """
import functools

async def app(scope, receive, send): ...
async def serve(engine, shard): ...

def middleware(inner):
    async def wrapped(scope, receive, send):
        await inner(scope, receive, send)
    return wrapped

class Server:
    def __init__(self, engine): ...
    async def serve(self, engine, shard): ...
    async def __call__(self, scope, receive, send): ...

    @classmethod
    def factory(cls, engine):
        return cls(engine)

wrapped = middleware(app)
server = Server(None)
partial = functools.partial(serve)
anonymous = lambda engine: app
nowhere = [lambda engine: app, middleware(app), Server(None)]
"""


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the user's, and another that has taken its objects over."""
    (tmp_path / "names_service.py").write_text(SERVICE)
    (tmp_path / "names_importer.py").write_text("from names_service import *\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("names_service")
    for name in ("names_service", "names_importer"):
        sys.modules.pop(name, None)


def test_objects_have_the_name_that_leads_to_them(service):
    objects = {
        "app": service.app,
        "wrapped": service.wrapped,
        "server": service.server,
        "Server": service.Server,
        "Server.factory": service.Server.factory,
        "anonymous": service.anonymous,
    }
    for path, obj in objects.items():
        assert name_of(obj) == f"names_service:{path}"
        found, _ = find_app(name_of(obj))
        assert found == obj
    for path, obj in {"serve": service.serve, "server.serve": service.server.serve, "partial": service.partial}.items():
        assert name_of(obj) == f"names_service:{path}"
        assert find_serve(name_of(obj)) == obj


def test_a_function_is_named_after_where_it_is_defined(service):
    importer = importlib.import_module("names_importer")
    assert name_of(importer.app) == "names_service:app"


def test_a_name_is_a_name_already():
    assert name_of("service:app") == "service:app"


@pytest.mark.parametrize("index", range(3))
def test_what_no_module_leads_to_is_refused(service, index):
    with pytest.raises(ConfigError, match="can't be imported by a shard: it is the attribute of no module"):
        name_of(service.nowhere[index])


def test_a_method_of_what_no_module_leads_to_is_refused(service):
    with pytest.raises(ConfigError, match="An object of type Server can't be imported by a shard"):
        name_of(service.Server(None).serve)


@pytest.mark.parametrize("wrong", [7, None, ["app"]])
def test_what_can_not_be_called_is_refused(wrong):
    with pytest.raises(ConfigError, match="is neither an application nor the name of one"):
        name_of(wrong)


SCRIPT = """
import multiprocessing

from sglang_subgw.shard.user_code import name_of

async def app(scope, receive, send): ...

class Server:
    async def serve(self, engine, shard): ...
    async def __call__(self, scope, receive, send): ...

server = Server()

def main():
    print(name_of(app), name_of(server), name_of(server.serve))

{end}
"""
GUARDED = SCRIPT.format(end='if __name__ == "__main__":\n    main()')
UNGUARDED = SCRIPT.format(end="main()")


def run(*arguments: str, where: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=where, capture_output=True, text=True, timeout=30, check=False
    )


def test_the_script_that_runs_has_the_name_of_its_file(tmp_path):
    (tmp_path / "ask.py").write_text(GUARDED)
    done = run("ask.py", where=tmp_path)
    assert done.stdout.split() == ["ask:app", "ask:server", "ask:server.serve"], done.stderr


@pytest.mark.parametrize(("module", "name"), [("package", "package.__main__"), ("package.ask", "package.ask")])
def test_a_module_that_runs_has_its_own_name(tmp_path, module, name):
    (tmp_path / "package").mkdir()
    for file in ("__init__.py", "__main__.py", "ask.py"):
        (tmp_path / "package" / file).write_text(GUARDED if file != "__init__.py" else "")
    done = run("-m", module, where=tmp_path)
    assert done.stdout.split()[0] == f"{name}:app", done.stderr


def test_a_script_that_an_import_would_start_again_is_refused(tmp_path):
    (tmp_path / "ask.py").write_text(UNGUARDED)
    done = run("ask.py", where=tmp_path)
    assert "app can't be imported by a shard: importing" in done.stderr
    assert "ask.py would start the program once more. Put what starts it below an if __name__" in done.stderr


def test_a_script_that_no_import_leads_to_is_refused(tmp_path):
    (tmp_path / "ask.py").write_text(GUARDED)
    assert "app can't be imported by a shard: no module's name leads to" in run("-P", "ask.py", where=tmp_path).stderr
    assert "no module's name leads to what runs here" in run("-c", UNGUARDED, where=tmp_path).stderr
