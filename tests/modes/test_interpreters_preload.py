"""What is loaded before the first interpreter leaves the main one whole."""

from __future__ import annotations

import subprocess
import sys

from sglang_subgw.config import Mode
from support.modes import needs

_CODE = """
import sys
from sglang_subgw.modes import interpreters
assert "asyncio" not in sys.modules
interpreters.preload()
import asyncio
async def main():
    async with asyncio.timeout(5):
        return asyncio.current_task() is not None
assert asyncio.run(main())
import _asyncio
assert asyncio.Task is _asyncio.Task
assert asyncio.current_task is _asyncio.current_task
"""


@needs(Mode.SUBINTERP)
def test_asyncio_has_its_c_parts_after_the_preload():
    subprocess.run([sys.executable, "-c", _CODE], check=True)
