"""Mode thread: a shard in a thread of this process's own interpreter, made for free-threaded builds."""

from __future__ import annotations

import dataclasses

from .inprocess import InProcessHost


class ThreadHost(InProcessHost):
    """One thread beside the application's own."""

    def _run_shard(self) -> None:
        # Here, since an interpreter installs its extension images by this package before it loads what needs them.
        from ..shard.entry import main

        main(dataclasses.replace(self._spec, isolated=False).to_json())
