"""The simulated scheduler's control plane: every message of SGLang's that isn't a request, and what it does."""

from .plane import ControlPlane

__all__ = ["ControlPlane"]
