"""The mode, settled before anything slow or visible happens: a wrong --app costs a second, not the engine's start."""

from __future__ import annotations

import os
import sys

from ..config import GatewayConfig
from ..modes.choose import Choice, choose


def settle(config: GatewayConfig) -> Choice:
    """`choose`, with the application importable."""
    importable(config)
    return choose(config)


def importable(config: GatewayConfig) -> None:
    """Make --app or --serve importable from the current directory, as everything is under python -m."""
    here = os.getcwd()
    if config.user_code and "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
