"""`python -m sglang_subgw`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .errors import SubgwError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; our own errors end in one clear line and exit status 1, or 2 for a wrong option."""
    from .cli.serve import serve
    from .errors import ConfigError

    try:
        return serve(sys.argv[1:] if argv is None else argv)
    except SubgwError as exc:
        print(f"sglang_subgw: {exc}", file=sys.stderr)
        return 2 if isinstance(exc, ConfigError) else 1


if __name__ == "__main__":
    sys.exit(main())
