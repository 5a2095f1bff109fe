"""A child process that ends with its parent, whatever the child is doing then: importing, computing, stopped.

Sockets that close with the parent tell only a child that looks at them; the kernel needs nobody to look.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_ORPHANED: Final = 1


def hold(parent_pid: int) -> None:
    """Kill this process as soon as the parent, whose pid the parent itself handed down, is gone; at once if it is.

    The signal is bound to the thread that started this process: that thread must live as long as the parent does.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    # Not "is it 1 now": in a container the parent may be 1, and an orphan's new parent some other.
    if os.getppid() != parent_pid:
        os._exit(_ORPHANED)


class Tether:
    """Pickled among the arguments of a child's function, it holds the child from the moment it is read there.

    That is before what comes after it is read, and with it imported.
    """

    def __reduce__(self) -> tuple[type[_Held], tuple[int]]:
        return _Held, (os.getpid(),)


class _Held(Tether):
    def __init__(self, parent_pid: int) -> None:
        hold(parent_pid)
