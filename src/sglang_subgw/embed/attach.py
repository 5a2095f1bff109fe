"""`attach`: a running engine in any asyncio program, without sglang and without a gateway."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Final

from ..contract import SLOT_BYTES, Slot
from ..engine.attach.attached import AttachedEngine
from ..engine.attach.seats import Seat
from ..engine_api.engine import ShardEngine
from ..engine_api.info import ShardInfo
from ..errors import EngineUnavailable
from ..worker.worker import TokenizerWorker

_INDEX: Final = 0
_GENERATION: Final = 1
_MODE: Final = "attach"


@asynccontextmanager
async def attach(owner: int | str, *, timeout: float = 20.0) -> AsyncIterator[ShardEngine]:
    """The engine of process `owner`, or of the segment named so, on the running loop until the context is left.

    What still runs then ends with an error and is aborted in the engine, and so it is when this process is killed.
    Raises ContractError with the engines there are for an owner without one, and EngineUnavailable for an engine that
    does not answer within `timeout` seconds. When the engine ends, so does everything in flight, with its reason.
    """
    loop = asyncio.get_running_loop()
    with ExitStack() as ends:
        engine = ends.enter_context(AttachedEngine.attach(str(owner)))
        seat = Seat.claim(engine.contract, gateway_id := secrets.token_hex(6))
        ends.callback(seat.release)
        slot = Slot(memoryview(bytearray(SLOT_BYTES)).cast("Q"))
        slot.begin(_GENERATION)
        contract = engine.contract.for_gateway(gateway_id, str(seat.path))
        worker = TokenizerWorker(contract, slot, _INDEX, _GENERATION)
        info = ShardInfo.of(contract, index=_INDEX, count=1, generation=_GENERATION, mode=_MODE)
        facade = ShardEngine(worker, [slot], info)

        def on_death(reason: str) -> None:
            loop.call_soon_threadsafe(lambda: facade.fail_all(EngineUnavailable(reason), for_good=True))
            on_stopping()

        def on_stopping() -> None:
            loop.call_soon_threadsafe(facade.end.begun.set)

        try:
            await worker.start()
            if not await facade.health_generate(timeout):
                raise EngineUnavailable(f"The engine of {owner} did not answer within {timeout:g} s.")
            engine.on_death(on_death)
            engine.on_stopping(on_stopping)
            yield facade
        finally:
            await worker.close()
