"""The rules of the layout that import-linter has no contract for; prints what breaks them, and exits with 1 then."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "sglang_subgw"
TESTS = ROOT / "tests"
MOST_FILES = 25
ONE_KIND: frozenset[str] = frozenset()
"""Folders that may hold more, as all their files are of one kind and stand in one registry."""
NO_MIRROR = frozenset({"behaviour", "docs", "examples", "faults", "real", "support", "tools"})
"""Folders of tests that are not those of one package."""


def crowded() -> Iterator[str]:
    """Folders with too many files."""
    for top in (SOURCE, TESTS):
        for folder in (top, *(path for path in sorted(top.rglob("*")) if path.is_dir())):
            name = str(folder.relative_to(ROOT))
            count = len(list(folder.glob("*.py")))
            if count > MOST_FILES and name not in ONE_KIND:
                yield f"{name} has {count} files, and {MOST_FILES} is the most: split it by what its files do."


def same_names() -> Iterator[str]:
    """Classes of one name."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    for name, found in sorted(places.items()):
        if len(found) > 1:
            yield f"{len(found)} classes are called {name}: {', '.join(found)}."


def homeless_tests() -> Iterator[str]:
    """Tests that aren't where the module is that they test."""
    for path in sorted(TESTS.rglob("test_*.py")):
        folder = path.relative_to(TESTS).parent
        if folder.parts and folder.parts[0] in NO_MIRROR:
            continue
        package = SOURCE / folder
        subject = path.stem.removeprefix("test_")
        names = {package.name, *(each.stem for each in package.glob("*") if each.suffix in ("", ".py"))}
        if not any(subject == name or subject.startswith(f"{name}_") for name in names):
            told = f"{path.relative_to(ROOT)} is named after nothing in {package.relative_to(ROOT)}"
            yield f"{told}: test_<module>.py or test_<module>_….py."


def main() -> int:
    """Check all."""
    broken = [*crowded(), *same_names(), *homeless_tests()]
    for line in broken:
        print(line)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
