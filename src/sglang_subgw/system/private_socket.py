"""Unix sockets at which the engine's side serves this user's shards, and nobody else."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from .storage import writing

_BACKLOG: Final = 1024


def listen(path: Path, what: str) -> socket.socket:
    """A listening stream socket of mode 0600; raises StorageError that names `what` when it can't be made."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with writing(what, path.parent):
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            # Nobody can connect before it listens.
            os.chmod(path, 0o600)
            listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
