"""docs/anatomy.md against the code: the functions that its links name, and a paragraph for every package."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import sglang_subgw
from support.api_tables import DOCS

PAGE = DOCS / "anatomy.md"
TEXT = PAGE.read_text()
SOURCE = Path(sglang_subgw.__file__).parent
LINKS = re.findall(r"\[([^\]]+)\]\(([^)#\s]+)\)", TEXT)
NAMED = sorted(
    {
        (name, target)
        for text, target in LINKS
        if target.endswith(".py")
        for name in re.split(r", | and | or ", text)
        if "/" not in name and not name.endswith(".py")
    }
)
"""A link's text is the names of what it leads to, or a path."""


@cache
def names_in(path: Path) -> frozenset[str]:
    """What a module defines: functions, classes and constants, and `Class.method`."""

    def defined(body: list[ast.stmt], prefix: str = "") -> list[str]:
        found = []
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                found += defined(node.body, f"{prefix}{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            found += [prefix + target.id for target in targets if isinstance(target, ast.Name)]
        return found

    return frozenset(defined(ast.parse(path.read_text()).body))


@pytest.mark.parametrize(("name", "target"), NAMED, ids=[f"{target}:{name}" for name, target in NAMED])
def test_what_a_link_names_is_in_its_file(name: str, target: str) -> None:
    assert name in names_in((PAGE.parent / target).resolve())


def test_every_package_has_its_paragraph() -> None:
    packages = {".".join(init.parent.relative_to(SOURCE).parts) for init in SOURCE.rglob("__init__.py")} - {""}
    described = re.findall(r"^ *- \*\*`([\w.]+)`\*\* ", TEXT, re.MULTILINE)
    assert sorted(described) == sorted(packages)


def test_every_package_and_module_at_the_top_is_in_the_picture() -> None:
    picture = re.findall(r"^```text\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)[0]
    top = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert top - {"__init__"} <= set(re.findall(r"\w+", picture))
