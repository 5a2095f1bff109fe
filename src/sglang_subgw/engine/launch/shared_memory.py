"""SGLang's own shared memory: found again when the process that had it was killed, by its pid or by a note it left."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from ...contract import process_start_time
from ...system.storage import own_status

_SHM_DIR: Final = Path("/dev/shm")
_ARGUMENTS: Final = "multi_tokenizer_args_"
_LOADS: Final = "sglang_loads_"
_NOTE: Final = "instance-"
_INSTANCE: Final = re.compile(r"\w{8,}")


def arguments_name(pid: int) -> str:
    """The segment in which SGLang tells its own tokenizer workers the arguments of the engine of process `pid`."""
    return f"{_ARGUMENTS}{pid}"


def note(directory: Path, port_args: Any) -> None:
    """Write down the name that the engine's load snapshots will have: it has neither a pid nor an owner in it."""
    if instance := getattr(port_args, "instance_id", ""):
        (directory / f"{_NOTE}{instance}").touch()


def noted(directory: Path) -> list[Path]:
    """The load snapshots of the engine that left its notes in `directory` or below."""
    instances = [path.name.removeprefix(_NOTE) for path in directory.rglob(f"{_NOTE}*")]
    return [
        path
        for instance in instances
        if _INSTANCE.fullmatch(instance)
        for path in _SHM_DIR.glob(f"{_LOADS}*{instance}*")
    ]


def stale(stale_dirs: Iterable[Path]) -> list[Path]:
    """This user's, of engines whose processes are gone; `stale_dirs` are the runtime directories of such."""
    found = [path for directory in stale_dirs for path in noted(directory)]
    for path in sorted(_SHM_DIR.glob(f"{_ARGUMENTS}*")):
        pid = path.name.removeprefix(_ARGUMENTS)
        if pid.isdecimal() and process_start_time(int(pid)) is None:
            found.append(path)
    return [path for path in found if own_status(path) is not None]
