"""Progress: plain lines where nobody watches, one changing line on a terminal."""

from __future__ import annotations

import io
import re

from sglang_subgw.cli.progress import Progress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_elsewhere():
    out = io.StringIO()
    with Progress(out) as progress:
        progress.phase("importing")
        progress.phase("loading")
    lines = out.getvalue().splitlines()
    assert [re.sub(r"^\[ *[\d.]+ s\] ", "", line) for line in lines] == ["importing …", "loading …"]
    assert "\r" not in out.getvalue()


def test_a_terminal_sees_each_phase_end_with_its_time():
    out = _Terminal()
    with Progress(out) as progress:
        progress.phase("importing")
        progress.phase("loading")
    done = [part for part in out.getvalue().split("\n") if part]
    assert [re.search(r"(\w+): [\d.]+ s$", line)[1] for line in done] == ["importing", "loading"]
