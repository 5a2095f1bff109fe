"""What is right and wrong with this machine, this Python and the gateways that run: one report, two forms."""

from .report import DoctorReport, examine
from .text import render

__all__ = ["DoctorReport", "examine", "render"]
