"""The pages in docs: their code is Python, and what they name is there."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import sglang_subgw
from sglang_subgw import ShardEngine
from support.api_tables import DOCS

ROOT = DOCS.parent
PAGES = sorted(DOCS.rglob("*.md"))
REFERENCE = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))


def blocks(language: str) -> list[tuple[str, str]]:
    """The page and the text of every fenced block in that language."""
    pattern = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [(page.name, code) for page in (*PAGES, ROOT / "README.md") for code in pattern.findall(page.read_text())]


@pytest.mark.parametrize(("page", "code"), blocks("python"))
def test_code_is_python_and_imports_what_there_is(page: str, code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "sglang_subgw":
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name), f"{page}: {node.module} has no {alias.name}"


def test_every_example_is_named() -> None:
    text = (DOCS / "embedding.md").read_text()
    assert [path.name for path in (ROOT / "examples").glob("*.py") if path.name not in text] == []


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md")], ids=lambda page: page.name
)
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    paths = [page.parent / link for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)]
    paths += [ROOT / path for path in re.findall(r"`((?:docs|examples|src|tests|tools|\.ci)/[\w/.-]+)`", text)]
    assert [str(path) for path in paths if not path.exists()] == []


def test_every_public_name_is_in_the_reference() -> None:
    documented = re.findall(r"auto(?:class|function):: sglang_subgw\.(\w+)$", REFERENCE, re.MULTILINE)
    assert sorted(documented) == sorted(sglang_subgw.__all__)


def test_every_family_of_methods_is_in_the_reference() -> None:
    families = {f"{base.__module__}.{base.__name__}" for base in ShardEngine.__bases__}
    assert set(re.findall(r"family:: (\S+)", REFERENCE)) == families
