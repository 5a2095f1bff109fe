"""Parts for the shard's tests: contracts, slots, columns as the engine sends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from sglang_subgw.contract import EngineContract, FeatureFacts, ModelFacts, Slot, WireFacts
from sglang_subgw.contract.slots import SLOT_BYTES
from sglang_subgw.engine_api.engine import ShardEngine
from sglang_subgw.engine_api.info import ShardInfo
from sglang_subgw.simulated import SimulatedEngine
from sglang_subgw.simulated.wire.schema import field_lists, modules
from sglang_subgw.worker.answers.facts import AnswerFacts
from sglang_subgw.worker.answers.sample import Sample
from sglang_subgw.worker.worker import TokenizerWorker

VOCAB_SIZE = 300
CONTEXT_LENGTH = 64


def contract(
    *, model: dict[str, Any] | None = None, server_args: dict[str, Any] | None = None, **features: Any
) -> EngineContract:
    """A contract without files and sockets."""
    return EngineContract(
        engine_id="0123456789ab",
        sglang_version="0.5.23",
        wire=WireFacts(
            worker_endpoint="ipc:///nowhere/router",
            runtime_dir="/nowhere",
            codec="pickle",
            schema=field_lists(),
            modules=modules(),
        ),
        model=ModelFacts(
            model_path="m",
            served_model_name="m",
            context_length=CONTEXT_LENGTH,
            vocab_size=VOCAB_SIZE,
            max_req_input_len=CONTEXT_LENGTH - 6,
            **(model or {}),
        ),
        features=FeatureFacts(**features),
        server_args=server_args or {},
    )


def slot() -> Slot:
    """A slot of its own."""
    return Slot(memoryview(bytearray(SLOT_BYTES)).cast("Q"))


def sample(rid: str = "r", *, stream: bool = False, **options: Any) -> Sample:
    """A sample that nobody sent."""
    return Sample(rid, rid, 0, options.pop("facts", AnswerFacts()), stream=stream, **options)


def columns(rids: list[str], **changes: Any) -> dict[str, Any]:
    """One output message: a token "x" for each rid, not the last."""
    count = len(rids)
    return {
        "rids": rids,
        "finished_reasons": [None] * count,
        "output_strs": ["x"] * count,
        "output_ids": [[1]] * count,
        "prompt_tokens": [3] * count,
        "completion_tokens": [1] * count,
        "reasoning_tokens": [0] * count,
        "cached_tokens": [0] * count,
        "retraction_counts": [0] * count,
        **changes,
    }


class Shard:
    """One shard beside a simulated engine."""

    def __init__(self, simulated: SimulatedEngine, *, index: int = 0, generation: int = 0) -> None:
        self.simulated = simulated
        self.slot = slot()
        contract = simulated.contract.for_gateway("feedfeedfeed", simulated.contract.wire.runtime_dir)
        self.worker = TokenizerWorker(contract, self.slot, index, generation)
        self.slot.begin(generation=1)
        info = ShardInfo.of(contract, index=index, count=1, generation=generation, mode="test")
        self.engine = ShardEngine(self.worker, [self.slot], info)

    async def idle(self) -> None:
        """Until nothing of this shard's is in the engine."""
        async with asyncio.timeout(5):
            while self.worker.active:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def shard_of(simulated: SimulatedEngine, **options: Any) -> AsyncIterator[Shard]:
    """A started shard; ends with nothing of it left."""
    shard = Shard(simulated, **options)
    await shard.worker.start()
    try:
        yield shard
    finally:
        await shard.worker.close()
        assert shard.worker.active == 0


def with_shard(
    directory: Path, scenario: Callable[[Shard], Coroutine[Any, Any, None]], **options: Any
) -> SimulatedEngine:
    """Run a scenario on one shard of a new simulated engine, which must not have been hurt."""

    async def run() -> None:
        async with shard_of(simulated) as shard, asyncio.timeout(20):
            await scenario(shard)

    with SimulatedEngine(directory, **options) as simulated:
        asyncio.run(run())
        assert simulated.violations == []
    assert list(directory.glob("shard-*")) == []
    return simulated


def with_two(
    directory: Path, scenario: Callable[[SimulatedEngine, Shard, Shard], Coroutine[Any, Any, None]], **options: Any
) -> None:
    """Run a scenario on two shards of an engine with an accelerator's memory, which must not have been hurt."""

    async def run() -> None:
        async with asyncio.timeout(20), AsyncExitStack() as stack:
            await scenario(
                simulated, *[await stack.enter_async_context(shard_of(simulated, index=index)) for index in range(2)]
            )

    with SimulatedEngine(directory, server_args={"device": "cuda"}, **options) as simulated:
        asyncio.run(run())
        assert simulated.violations == []
        assert simulated.death_reason == ""
