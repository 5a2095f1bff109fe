"""glibc's arenas: one for each thread, unless somebody has set a limit."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys

import pytest

_COUNT = """
import ctypes, os, sys, threading
from sglang_subgw.system import arenas
arenas.enough_for_all_threads()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fdopen.restype = ctypes.c_void_p
count = int(sys.argv[1])
here, end = threading.Barrier(count + 1), threading.Event()

def hold():
    libc.malloc(ctypes.c_size_t(1000))
    here.wait()
    end.wait()

threads = [threading.Thread(target=hold) for _ in range(count)]
for thread in threads:
    thread.start()
here.wait()
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
end.set()
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="not glibc")
@pytest.mark.parametrize(
    "limit",
    [{}, {"MALLOC_ARENA_MAX": "2"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}],
    ids=["none", "set", "tuned"],
)
def test_each_of_many_threads_has_one_of_its_own(limit: dict[str, str]) -> None:
    threads = 8 * (os.cpu_count() or 1) + 4
    environment = {key: value for key, value in os.environ.items() if key not in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")}
    done = subprocess.run(
        [sys.executable, "-c", _COUNT, str(threads)],
        env=environment | limit,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    arenas = len(re.findall("<heap nr=", done.stdout))
    assert arenas == 2 if limit else arenas > threads, done.stdout
