"""Entry of a shard's child process: `python -m sglang_subgw.modes.child SPEC`."""

from __future__ import annotations

import signal
import sys

from ..shard.entry import main

if __name__ == "__main__":
    # A terminal's Ctrl-C and a service manager's SIGTERM reach the whole group; the leader decides what they mean.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    main(sys.argv[1])
