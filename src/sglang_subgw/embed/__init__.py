"""For servers of one's own: the engine from any process, thread or interpreter, and gateways in one's own process."""

from .attach import attach
from .gateway import Gateway
from .run import run

__all__ = ["Gateway", "attach", "run"]
