"""Engine routes on the command line, and a client of them."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import httpx


def options(*routes: str) -> list[str]:
    return [part for route in routes for part in ("--engine-route", route)]


def admin_client(banner: str) -> httpx.Client:
    """At the address that the banner tells."""
    found = re.search(r"^  admin +(\S+)$", banner, re.MULTILINE)
    assert found, banner
    url = found[1]
    if url.startswith("unix:"):
        path = url.removeprefix("unix:")
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
        return httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://localhost", timeout=60)
    return httpx.Client(base_url=url, timeout=60)
