"""Mode subinterp: a shard in an interpreter with its own GIL, in a thread of this process."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import Any

from ..shard.spec import ShardSpec
from . import images, interpreters
from .inprocess import InProcessHost

log = logging.getLogger("sglang_subgw.gateway")

_BOOTSTRAP = """
import gc, sys
gc.disable()  # until it is ready: imports make little garbage, and collecting it takes a tenth of the start
sys.path[:] = {path!r}
from sglang_subgw.modes import images
images.install({packages!r}, {copies_dir!r})
try:
    from sglang_subgw.shard.entry import main
    main({spec!r})
finally:
    # What was frozen would outlive the interpreter.
    gc.unfreeze()
    images.release()
"""


class SubinterpHost(InProcessHost):
    """One interpreter, made, run and closed in its thread."""

    def __init__(self, spec: ShardSpec, *, scratch_dir: str) -> None:
        super().__init__(spec)
        self._packages = images.select(spec.config.images)
        self._scratch_dir = scratch_dir

    def start(self) -> None:
        """Start the thread that makes and runs the interpreter."""
        interpreters.preload()
        # Each shard's image of the tokenizers library would make a pool of threads, one for each core, which nothing
        # ends: not the shard's end, nor the gateway's. SGLang sets it for its own workers.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        super().start()

    def _run_shard(self) -> None:
        interpreter = interpreters.create()
        try:
            interpreter.exec(
                _BOOTSTRAP.format(
                    path=list(sys.path),
                    packages=self._packages,
                    copies_dir=self._scratch_dir,
                    spec=self._spec.to_json(),
                )
            )
        except interpreters.ExecutionFailed as exc:
            self._exit_reason, traceback = interpreters.account(exc)
            if traceback:
                log.error("Shard %d failed before it could say so: %s", self._spec.index, traceback)
        finally:
            self._close(interpreter)

    def _close(self, interpreter: Any) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                interpreter.close()
        except Exception as exc:
            self._exit_reason = self._exit_reason or f"the interpreter could not be closed: {exc}"
