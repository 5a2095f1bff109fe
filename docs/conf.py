"""Sphinx's configuration: `make docs`, which needs neither sglang nor torch."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "sglang-subgw"
author = "The sglang-subgw authors"
release = version_of("sglang-subgw")

extensions = ["myst_parser", "sphinx.ext.autodoc", "families"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"sglang-subgw {release}"

# Docstrings put names into single backticks.
default_role = "code"
smartquotes = False
add_module_names = False
autodoc_class_signature = "separated"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True

# Only this package's own names are described here: those of Python's library and of others have no page to link to.
nitpick_ignore_regex = [("py:.*", r"(?!sglang_subgw\b).*")]
