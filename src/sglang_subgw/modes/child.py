"""Entry of a shard's child process: `python -m sglang_subgw.modes.child SPEC`."""

from __future__ import annotations

import gc
import signal
import sys

# Until the shard is ready: imports make little garbage, and collecting it takes a tenth of the start.
gc.disable()

from ..shard.entry import main  # noqa: E402
from ..shard.spec import ShardSpec  # noqa: E402
from ..system import tether  # noqa: E402

if __name__ == "__main__":
    # A terminal's Ctrl-C and a service manager's SIGTERM reach the whole group; the leader decides what they mean.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # The end of its channel tells a shard that the leader is gone, unless its loop stands still.
    tether.hold(ShardSpec.from_json(sys.argv[1]).leader_pid)
    main(sys.argv[1])
