"""The tables of docs/engine-api.md, for tests: what can be called from a shard, and what of it a CPU can do."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = DOCS / "engine-api.md"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method; `name` is SGLang's, `method` the shard's."""

    name: str
    method: str
    form: str
    sides: frozenset[str]
    text: str
    since: str
    cpu: bool

    def __str__(self) -> str:
        return self.name


def engine_rows() -> list[Row]:
    """Methods of sglang.Engine."""
    return [_row([cells[0], *cells]) for cells in _table("Methods of `sglang.Engine`")]


def manager_rows() -> list[Row]:
    """Methods of SGLang's TokenizerManager."""
    return [_row(cells) for cells in _table("Methods of SGLang's tokenizer manager")]


def method_of(owner: type, name: str) -> Any:
    """The plain function of that name; fails a test where there is none."""
    found = inspect.getattr_static(owner, name, None)
    assert inspect.isfunction(found), f"{owner.__name__} has no method {name}"
    return found


def _table(heading: str) -> list[list[str]]:
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def _row(cells: list[str]) -> Row:
    name, method, form, sides, text, since, cpu = cells
    assert cpu in ("yes", "no"), cells
    return Row(
        name=name.strip("`"),
        method=method.strip("`"),
        form=form,
        sides=frozenset(sides.split(", ")),
        text=text,
        since=since,
        cpu=cpu == "yes",
    )
