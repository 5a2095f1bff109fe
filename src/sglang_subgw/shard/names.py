"""The names of objects: what an application is called in another interpreter, which has to import it."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError

_MAIN: Final = "__main__"


def name_of(obj: object) -> str:
    """`module:attribute` by which a shard imports `obj`; a string is taken for such a name already.

    An object of the script that runs is imported anew by the script's own name, so the script needs the
    `if __name__ == "__main__":` that multiprocessing asks for. Raises ConfigError for an object that is no
    application, and for one that no module's attribute leads to, such as a lambda or a local function.
    """
    if isinstance(obj, str):
        return obj
    if inspect.ismethod(obj):
        return f"{_name(obj.__self__)}.{obj.__name__}"
    if not callable(obj):
        raise ConfigError(f"{obj!r} is neither an application nor the name of one.")
    return _name(obj)


def _name(obj: object) -> str:
    found = next(_holders(obj), None)
    if found is None:
        raise ConfigError(
            f"{_called(obj)} can't be imported by a shard: it is the attribute of no module.",
            hint="Define it at the top level of a module.",
        )
    module, path = found
    return f"{_name_of_script(obj) if module == _MAIN else module}:{path}"


def _holders(obj: object) -> Iterator[tuple[str, str]]:
    """Modules and attributes that lead to it: where it was defined first, the script that runs last."""
    home, path = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if isinstance(home, str) and isinstance(path, str) and _reached(home, path) is obj:
        yield home, path
    # multiprocessing has a name of its own for the script.
    main = sys.modules[_MAIN]
    modules = [(name, module) for name, module in sys.modules.copy().items() if module is not main]
    for name, module in [*modules, (_MAIN, main)]:
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is obj:
                yield name, attribute


def _reached(module: str, path: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _name_of_script(obj: object) -> str:
    main = sys.modules[_MAIN]
    path, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    name = spec.name if spec is not None else Path(path or "").stem
    if path is None or not _is_found(name, path):
        raise ConfigError(
            f"{_called(obj)} can't be imported by a shard: no module's name leads to {path or 'what runs here'}.",
            hint="Define it in a module that can be imported.",
        )
    if not _is_guarded(Path(path).read_text()):
        raise ConfigError(
            f"{_called(obj)} can't be imported by a shard: importing {path} would start the program once more.",
            hint="Put what starts it below an if __name__ == '__main__':.",
        )
    return name


def _is_found(name: str, path: str) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None and os.path.realpath(spec.origin) == os.path.realpath(path)


def _is_guarded(source: str) -> bool:
    """Something in it happens only when it runs as a script."""
    tests = [node.test for node in ast.parse(source).body if isinstance(node, ast.If)]
    return any(ast.unparse(test).replace('"', "'") in _GUARDS for test in tests)


_GUARDS: Final = ("__name__ == '__main__'", "'__main__' == __name__")


def _called(obj: object) -> str:
    return str(getattr(obj, "__qualname__", None) or f"An object of type {type(obj).__name__}")
