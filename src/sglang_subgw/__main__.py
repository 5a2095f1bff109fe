"""`python -m sglang_subgw`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final

from .errors import SubgwError

COMMANDS: Final = {
    "serve": ".cli.serve:serve",
    "attach": ".cli.attach:attach",
    "doctor": ".cli.doctor:doctor",
    "bench": ".cli.bench:bench",
}
"""Each imported only when it is asked for: `attach` runs where there is no sglang."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; our own errors end in one clear line and exit status 1, or 2 for a wrong option."""
    from .errors import ConfigError

    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments.pop(0) if arguments and not arguments[0].startswith("-") else "serve"
    try:
        if command not in COMMANDS:
            raise ConfigError(f"{command!r} is not a command.", hint=f"The commands are {', '.join(COMMANDS)}.")
        module, function = COMMANDS[command].split(":")
        run: Callable[[Sequence[str]], int] = getattr(import_module(module, __package__), function)
        return run(arguments)
    except SubgwError as exc:
        print(f"sglang_subgw: {exc}", file=sys.stderr)
        return 2 if isinstance(exc, ConfigError) else 1


if __name__ == "__main__":
    sys.exit(main())
