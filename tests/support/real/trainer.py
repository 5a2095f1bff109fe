"""Rank 0 of a process group that schedulers join: commands by line, as JSON; `python -m support.real.trainer`."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from sglang.srt.utils.common import init_custom_process_group


def main() -> None:
    groups: dict[str, Any] = {}
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        name = command["group"]
        if "port" in command:
            groups[name] = init_custom_process_group(
                backend="gloo",
                init_method=f"tcp://127.0.0.1:{command['port']}",
                world_size=2,
                rank=0,
                group_name=name,
            )
        elif "values" in command:
            tensor = torch.tensor(command["values"], dtype=getattr(torch, command["dtype"]))
            torch.distributed.broadcast(tensor, src=0, group=groups[name])
        else:
            torch.distributed.destroy_process_group(groups.pop(name))
        print(json.dumps("done"), flush=True)


if __name__ == "__main__":
    main()
