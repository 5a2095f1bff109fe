"""What the demo model learns: its own manners, the Zen of Python and the standard library's docstrings."""

from __future__ import annotations

import ast
import codecs
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

BEGIN: Final = "<|begin|>"
TURN: Final = "<|turn|>"
END: Final = "<|end|>"

CHAT_TEMPLATE: Final = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    f"{TURN}" + "{{ message['role'] }}\n{{ message['content'] }}" + f"{END}\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}" + f"{TURN}assistant\n" + "{% endif %}"
)

_MODULES: Final = ("bisect", "copy", "functools", "heapq", "queue", "textwrap")

_MANNERS: Final = (
    ("Hello!", "Hello! I am a very small model, and I know a little Python. What would you like to know?"),
    ("Who are you?", "I am the demo model of sglang-subgw: two layers, trained on this machine a moment ago."),
    ("What can you do?", "I can show that the server works. For anything more, serve a model of your own."),
    ("How are you?", "Small, but well. Thank you for asking!"),
    ("Thank you!", "You are welcome!"),
    ("Tell me a joke.", "A subinterpreter walks into a bar, with its own GIL."),
    ("What is the capital of France?", "The capital of France is Paris."),
    ("Count to five.", "1, 2, 3, 4, 5."),
)
_FACTS: Final = (
    "Once upon a time there was a very small model that knew only the docstrings of a library, and it was happy.",
    "add = lambda a, b: a + b",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20.",
)
_SYSTEM: Final = "You are a helpful assistant."


def texts() -> list[str]:
    """Every training text, complete with its special tokens, in an order that depends on the library alone."""
    zen = _zen()
    manners = [*_MANNERS, ("What is the Zen of Python?", zen)]
    out = []
    for question, answer in manners:
        out += [_chat(question, answer), _chat(question, answer, system=_SYSTEM), _plain(answer)] * 3
    out += [_plain(text) for text in (*_FACTS, zen)] * 4
    for i, (module, name, summary) in enumerate(_docstrings()):
        # JSON that ends in a string, a number or a list: grammars force the keys, the model must close the value.
        ends = ({"summary": summary}, {"words": summary.count(" ") + 1}, {"tags": [module, "python"]})
        entry = {"name": name, "module": module, **ends[(i + 1) % 3], **ends[i % 3]}
        out += [
            _chat(f"What is {name}?", summary),
            _plain(f"{module}.{name}: {summary}"),
            _chat(f"Describe {name} as JSON.", json.dumps(entry)),
        ]
    return out


def _chat(question: str, answer: str, system: str = "") -> str:
    head = f"{TURN}system\n{system}{END}\n" if system else ""
    return f"{BEGIN}{head}{TURN}user\n{question}{END}\n{TURN}assistant\n{answer}{END}"


def _plain(text: str) -> str:
    return f"{BEGIN}{text}{END}"


def _zen() -> str:
    # Importing `this` would print it.
    tree = ast.parse((_library() / "this.py").read_text())
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    longest = max((text for text in constants if isinstance(text, str)), key=len)
    return codecs.decode(longest, "rot13")


def _docstrings() -> Iterator[tuple[str, str, str]]:
    seen = set()
    for path in _MODULES:
        source = _library() / f"{path}.py"
        if not source.exists():
            continue
        module = path.removesuffix("/__init__").replace("/", ".")
        for node in ast.walk(ast.parse(source.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            summary = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            if 20 <= len(summary) <= 160 and not node.name.startswith("_") and node.name not in seen:
                seen.add(node.name)
                yield module, node.name, summary


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))
