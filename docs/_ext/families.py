"""`.. family:: module.Class`: the methods that ShardEngine inherits from one of its families, in the source's order."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util import import_object
from sphinx.util.docutils import SphinxDirective


class Family(SphinxDirective):
    """One automethod of ShardEngine per public method of the class but for those in `:exclude:`."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {"exclude": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        family = import_object(self.arguments[0])
        hidden = set(self.options.get("exclude", "").split())
        methods = {name: obj for name, obj in vars(family).items() if inspect.isfunction(obj) and name[0] != "_"}
        if unknown := hidden - methods.keys():
            raise self.error(f"{self.arguments[0]} has no method {', '.join(sorted(unknown))}")
        lines = [f".. automethod:: sglang_subgw.ShardEngine.{name}" for name in methods if name not in hidden]
        return self.parse_text_to_nodes(StringList(lines, source=self.arguments[0]))


def setup(app: Sphinx) -> dict[str, Any]:
    """Make the directive known."""
    app.add_directive("family", Family)
    return {"version": "1", "parallel_read_safe": True}
