"""What memory a process has to itself."""

from __future__ import annotations

from pathlib import Path


def private_bytes(pid: int | str = "self") -> int:
    """Bytes that only this process maps (USS, proc(5) smaps_rollup), 0 where the kernel doesn't tell."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))
