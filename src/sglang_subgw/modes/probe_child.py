"""The scratch process of a probe: `python -m sglang_subgw.modes.probe_child SPEC`; a crash here costs nothing."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
import threading
import warnings
from typing import Any

from . import images
from .trail import OPTIONAL, Trail

_BOOTSTRAP = """
import sys
sys.path[:] = {path!r}
from sglang_subgw.modes import probe_child
probe_child.follow({spec!r})
"""


def follow(spec_json: str) -> None:
    """Import, in this interpreter, all that a shard would; what happens stands in the trail."""
    spec = json.loads(spec_json)
    trail = Trail(spec["trail"])
    if spec["isolated"]:
        images.install(spec["packages"], spec["copies_dir"])
    trail.follow_imports()
    try:
        _import_all(trail, spec["app"], spec["serve"])
    finally:
        if spec["isolated"]:
            images.release()


def _import_all(trail: Trail, app: str, serve: str) -> None:
    from ..config import GatewayConfig
    from ..errors import ConfigError, DependencyError

    try:
        trail("stage", "shard")
        importlib.import_module("sglang_subgw.shard.entry")
        for name in OPTIONAL:
            try:
                importlib.import_module(name)
            except ImportError as exc:
                trail("missing", name, str(exc))
        if not serve:
            from ..shard.uvicorn_seam import check_uvicorn

            asyncio.run(check_uvicorn(GatewayConfig()))
        if app or serve:
            trail("stage", "app")
            from ..shard.user_code import preload

            preload(app, serve)
    except (ConfigError, DependencyError) as exc:
        trail("config_error", detail=str(exc))
    except BaseException as exc:
        trail("error", detail=f"{type(exc).__name__}: {exc}")


def _in_interpreters(spec: dict[str, Any]) -> None:
    # Two at the same time, as shards are: a module may take the first and refuse the second.
    from . import interpreters

    interpreters.preload()
    trail = Trail(spec["trail"])
    opened = []
    # What a shard has by itself is known to stand that.
    for _ in range(2 if spec["app"] or spec["serve"] else 1):
        opened.append(interpreters.create())
        opened[-1].exec(_BOOTSTRAP.format(path=list(sys.path), spec=json.dumps(spec)))
    trail("stage", "close")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for interpreter in opened:
            interpreter.close()


def main(spec_json: str) -> None:
    """Do it in a thread, as a shard runs in one, and leave without Python's own clean-up."""
    spec = json.loads(spec_json)
    # Whatever becomes of the parent, this ends.
    signal.alarm(int(spec["timeout"]) + 5)
    work = (lambda: _in_interpreters(spec)) if spec["isolated"] else (lambda: follow(spec_json))
    thread = threading.Thread(target=work, name="probe")
    thread.start()
    thread.join()
    Trail(spec["trail"])("stage", "done")
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
