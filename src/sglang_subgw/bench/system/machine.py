"""What the numbers were measured on, and what else ran there."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """Processor, memory, kernel, Python and the packages that matter; no names of machines or people."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
        "versions": {name: _version(name) for name in ("sglang_subgw", "sglang", "uvicorn", "uvloop", "httptools")},
        "load_average": round(os.getloadavg()[0], 2),
    }


def line(machine: Mapping[str, Any]) -> str:
    """In one line."""
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']:.0f} GB, "
        f"Linux {machine['kernel']}, Python {machine['python']}, SGLang {machine['versions']['sglang'] or '-'}; "
        f"load average before: {machine['load_average']}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
