"""What is right and wrong with this machine, this Python and the gateways that run: one report, two forms."""

from .report import Report, examine
from .text import render

__all__ = ["Report", "examine", "render"]
