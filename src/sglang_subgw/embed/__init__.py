"""For servers of one's own: the engine from any process, thread or interpreter."""

from .attach import attach

__all__ = ["attach"]
