"""glibc's allocator: a place of its own for each thread, so that shards of one process don't wait for each other.

It has eight arenas for each core, and a thread that finds all of them taken shares one. Two shards that did, on two
cores beside SGLang's engine, took up to twice as long over a prompt: the tokenizers library allocates for each word.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

_M_ARENA_MAX: Final = -8
_MOST: Final = 1024
"""Any number of threads: an arena is only made for one that finds none free, and a free one is used again."""


def enough_for_all_threads() -> None:
    """Let there be as many arenas as threads; of use only before the process has come to its limit.

    Whoever sets a limit of their own, by the environment, keeps it. Other allocators than glibc's don't share.
    """
    if "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _MOST)
