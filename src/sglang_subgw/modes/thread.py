"""Mode thread: a shard in a thread of this process's own interpreter, made for free-threaded builds."""

from __future__ import annotations

import dataclasses
import threading

from . import gil
from .inprocess import InProcessHost

_importing = threading.Lock()
"""Two threads that import the same packages at once can see each other's half-made modules (asyncio's, for one)."""


class ThreadHost(InProcessHost):
    """One thread beside the application's own."""

    def _run_shard(self) -> None:
        # What turns the GIL on later costs speed only: it must not keep a shard from starting again.
        if self._spec.generation == 1:
            with _importing:
                gil.require_off(self._load)
        # Here, since an interpreter installs its extension images by this package before it loads what needs them.
        from ..shard.entry import main

        main(dataclasses.replace(self._spec, isolated=False).to_json())

    def _load(self) -> None:
        """Import all that the shard will."""
        from ..shard import user_code as application

        application.preload(self._spec.config.app, self._spec.config.serve)
