"""encode, rerank and score in a program of one's own that attached to an engine."""

from __future__ import annotations

import asyncio
import struct
from array import array
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import sglang_subgw
from sglang_subgw.engine.attach.published import PublishedEngine
from sglang_subgw.engine_api.engine import ShardEngine
from sglang_subgw.errors import EngineRejected, EngineUnavailable, RequestRejected
from sglang_subgw.simulated import SimulatedEngine, logprob_of
from sglang_subgw.simulated.embedding import embedding_of

EMBEDDING = {"is_generation": False}


def attached(
    directory: Path, scenario: Callable[[ShardEngine], Coroutine[Any, Any, None]], **options: Any
) -> SimulatedEngine:
    """Run a scenario on an engine that must not have been hurt."""

    async def run(name: str) -> None:
        async with asyncio.timeout(20), sglang_subgw.attach(name) as engine:
            await scenario(engine)

    with SimulatedEngine(directory, **options) as simulated, PublishedEngine(simulated) as published:
        asyncio.run(run(published.name))
        assert simulated.wait_idle(5)
        assert simulated.violations == []
    return simulated


def test_embeddings(runtime_dir: Path, codec: str) -> None:
    async def scenario(engine: ShardEngine) -> None:
        one: Any = await engine.async_encode("abc", rid="mine")
        assert (one["embedding"], one["meta_info"]["id"]) == (embedding_of(b"abc"), "mine")
        many: Any = await engine.async_encode(["abc", "x"])
        assert [out["embedding"] for out in many] == [embedding_of(b"abc"), embedding_of(b"x")]
        ranked: Any = await engine.async_rerank([["ab", "c"]])
        assert ranked[0]["embedding"] == embedding_of(b"abc", [0, 0, 1])
        assert engine.worker.active == 0

    attached(runtime_dir, scenario, codec=codec, model=EMBEDDING)


def test_the_blocking_forms_work_in_any_other_thread(runtime_dir: Path) -> None:
    async def scenario(engine: ShardEngine) -> None:
        def block() -> list[Any]:
            return [engine.encode("abc"), engine.rerank([["a", "b"]]), engine.score("q", ["a"])]

        encoded, ranked, scored = await asyncio.to_thread(block)
        assert encoded["embedding"] == embedding_of(b"abc")
        assert ranked[0]["embedding"] == embedding_of(b"ab", [0, 1])
        assert scored.scores == [embedding_of(b"qa")]
        for method, arguments in (
            (engine.encode, ["a"]),
            (engine.score, ["q", ["a"]]),
            (engine.rerank, [[["a", "b"]]]),
        ):
            with pytest.raises(RuntimeError, match="would block the event loop"):
                method(*arguments)

    attached(runtime_dir, scenario, model=EMBEDDING)


def test_scores_of_labels(runtime_dir: Path, codec: str) -> None:
    from math import exp

    async def scenario(engine: ShardEngine) -> None:
        result = await engine.async_score("q", ["a", "bc"], [[1, 2], [3]], return_token_logprobs=True)
        assert result.token_logprobs == [[logprob_of(1, 2), logprob_of(2, 2)], [logprob_of(3, 3)]]
        assert result.scores == [[exp(value) for value in row] for row in result.token_logprobs]
        assert result.prompt_tokens == 5

    attached(runtime_dir, scenario, codec=codec)


def test_scores_of_items_in_one_prompt(runtime_dir: Path, codec: str) -> None:
    features = {"enable_mis": True, "disable_radix_cache": True, "chunked_prefill_size": -1}

    async def scenario(engine: ShardEngine) -> None:
        result = await engine.async_score([7], [[1], [2, 3]], [[4], [5, 6]], return_token_logprobs=True)
        # Each in the place of the delimiter behind the item.
        assert result.token_logprobs == [[logprob_of(4, 3)], [logprob_of(5, 6), logprob_of(6, 6)]]
        setwise = await engine.async_score(
            [7], [[1, 9], [9, 2, 9]], [4], apply_softmax=True, score_extraction_token_id=9
        )
        assert setwise.scores == [[[1.0]], [[1.0], [1.0]]]

    simulated = attached(runtime_dir, scenario, codec=codec, model={"vocab_size": 10000}, features=features)
    together, setwise = simulated.requests()[-2:]
    assert together.token_ids_logprob == [4, 5, 6]
    assert together.multi_item_delimiter_indices == [1, 3, 6]
    assert setwise.token_indices_to_pool == [3, 5, 7]


def test_an_adapter_s_embedding_and_its_unloading(runtime_dir: Path) -> None:
    async def scenario(engine: ShardEngine) -> None:
        assert (await engine.async_load_lora_adapter("one", "/adapters/one")).success
        lora_id = engine.worker.adapters.loaded["one"].lora_id
        await engine.async_encode(["a", "b"], lora_path=["one", None])
        assert [request.lora_id for request in simulated.requests()[-2:]] == [lora_id, None]
        assert [request.lora_name for request in simulated.requests()[-2:]] == ["one", None]
        assert (await engine.async_unload_lora_adapter("one")).success
        with pytest.raises(RequestRejected, match="'one' is not loaded|one"):
            await engine.async_encode("a", lora_path="two")

    with (
        SimulatedEngine(runtime_dir, model=EMBEDDING, features={"enable_lora": True}) as simulated,
        PublishedEngine(simulated) as published,
    ):

        async def run() -> None:
            async with asyncio.timeout(20), sglang_subgw.attach(published.name) as engine:
                await scenario(engine)

        asyncio.run(run())
        assert simulated.violations == []


def test_tensors_go_to_the_engine_s_side(runtime_dir: Path) -> None:
    class Vector:
        """As torch's and numpy's."""

        dtype = "float32"
        shape = (2,)

        def tobytes(self) -> bytes:
            return array("f", [3.0, 4.0]).tobytes()

    async def scenario(engine: ShardEngine) -> None:
        await engine.async_encode(["ab"], embed_override_token_id=97, embed_overrides=[[Vector()]], rid="mine")
        result = await engine.async_score(
            [1], [[2]], [3], embed_override_token_id=1, query_embed_overrides=[[1.0, 2.0]], item_embed_overrides=[None]
        )
        assert result.scores == [[0.5]]
        with pytest.raises(RequestRejected, match="not a tensor of torch's or an array"):
            await engine.async_encode("ab", embed_overrides=[["x"]])

    simulated = attached(runtime_dir, scenario, model=EMBEDDING)
    (_, encode), (_, score) = simulated.engine_side.asked
    given = {"text": ["ab"], "rid": ["mine_0"], "embed_override_token_id": 97, "embed_overrides": [[{"tensor": 0}]]}
    assert encode["given"] == given
    assert (encode["tensors"], encode["blob"]) == (
        [{"dtype": "float32", "shape": [2], "bytes": 8}],
        struct.pack("<2f", 3.0, 4.0),
    )
    assert score["given"]["query_embed_overrides"] == [{"tensor": 0}]
    assert score["given"]["item_embed_overrides"] == [None]


def test_an_abort_ends_an_embedding_as_sglang_s(runtime_dir: Path) -> None:
    with SimulatedEngine(runtime_dir, model=EMBEDDING) as simulated, PublishedEngine(simulated) as published:

        async def run() -> Any:
            async with sglang_subgw.attach(published.name) as engine:
                simulated.set_faults(stall=True)
                task = asyncio.create_task(engine.async_encode(["a", "b"], rid="mine"))
                while simulated.running() < 2:
                    await asyncio.sleep(0.001)
                assert engine.abort("mine")
                return await task

        outs = asyncio.run(run())
        for out in outs:
            assert (out["text"], out["output_ids"]) == ("", [])
            assert out["meta_info"]["finish_reason"]["type"] == "abort"
        assert simulated.violations == []


def test_a_coroutine_that_is_cancelled_is_aborted_in_the_engine(runtime_dir: Path) -> None:
    with SimulatedEngine(runtime_dir, model=EMBEDDING) as simulated, PublishedEngine(simulated) as published:

        async def run() -> None:
            async with sglang_subgw.attach(published.name) as engine:
                simulated.set_faults(stall=True)
                task = asyncio.create_task(engine.async_score("q", ["a", "b"]))
                while simulated.running() < 2:
                    await asyncio.sleep(0.001)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                async with asyncio.timeout(5):
                    while engine.worker.active:
                        await asyncio.sleep(0.001)

        asyncio.run(run())
        assert len(simulated.aborted) == 2
        assert simulated.violations == []


def test_an_engine_that_ends_ends_an_embedding_with_its_reason(runtime_dir: Path) -> None:
    with SimulatedEngine(runtime_dir, model=EMBEDDING) as simulated, PublishedEngine(simulated) as published:

        async def run() -> None:
            async with sglang_subgw.attach(published.name) as engine:
                simulated.set_faults(stall=True)
                task = asyncio.create_task(engine.async_encode("a"))
                while simulated.running() < 1:
                    await asyncio.sleep(0.001)
                engine.fail_all(EngineUnavailable("the scheduler is gone"), for_good=True)
                with pytest.raises(EngineUnavailable, match="the scheduler is gone"):
                    await task
                with pytest.raises(EngineUnavailable, match="the scheduler is gone"):
                    await engine.async_score("q", ["a"])

        asyncio.run(run())
        simulated.set_faults(stall=False)


def test_a_full_queue_is_an_error_of_the_engine_s(runtime_dir: Path) -> None:
    async def scenario(engine: ShardEngine) -> None:
        with pytest.raises(EngineRejected, match="The request queue is full") as failure:
            await engine.async_encode(["a", "b", "c"])
        assert failure.value.status == 503

    with SimulatedEngine(runtime_dir, model=EMBEDDING, max_queued=2) as simulated:
        with PublishedEngine(simulated) as published:

            async def run() -> None:
                async with sglang_subgw.attach(published.name) as engine:
                    simulated.set_faults(stall=True)
                    await scenario(engine)

            asyncio.run(run())
        assert simulated.violations == []
