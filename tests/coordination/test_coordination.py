"""What the workers of one engine agree on: state, sections, tellings, and calls to the engine's side."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from sglang_subgw.coordination.client import Coordination
from sglang_subgw.coordination.server import Coordinator
from sglang_subgw.errors import EngineUnavailable, RequestRejected, StorageError


@asynccontextmanager
async def member(path: Path, name: str) -> AsyncIterator[Coordination]:
    coordination = Coordination(str(path), name)
    await coordination.start()
    try:
        yield coordination
    finally:
        await coordination.close()


def with_members(
    tmp_path: Path,
    scenario: Callable[..., Awaitable[None]],
    count: int = 2,
    state: dict[str, Any] | None = None,
    **engine_side: Any,
) -> None:
    """Run a scenario with so many connected workers."""
    path = tmp_path / "coordinator"

    async def run() -> None:
        async with AsyncExitStack() as ends:
            await scenario(*[await ends.enter_async_context(member(path, f"w{i}")) for i in range(count)])

    coordinator = Coordinator(path, state or {}, **engine_side)
    coordinator.start()
    try:
        asyncio.run(run())
    finally:
        coordinator.close()
        coordinator.close()
    assert not path.exists()


@pytest.mark.parametrize("attempt", range(10))
def test_those_that_connect_in_its_last_moment_leave_nothing_open(short_dir: Path, attempt: int) -> None:
    coordinator = Coordinator(short_dir / "coordinator", {})
    coordinator.start()
    end = threading.Thread(target=coordinator.close)
    with ExitStack() as ends:
        for number in range(40):
            if number == 4 * attempt:
                end.start()
            client = ends.enter_context(socket.socket(socket.AF_UNIX))
            with suppress(OSError):
                client.connect(str(short_dir / "coordinator"))
        end.join()


def test_everybody_has_the_state_before_a_telling_returns(tmp_path: Path) -> None:
    async def scenario(*members: Coordination) -> None:
        seen = {id(one): [one.state] for one in members}
        for one in members:
            one.on_state = seen[id(one)].append
        assert await members[0].tell("apply", state={"paused": True}) == [None] * 3
        await members[1].tell("apply", state={"weights": {"version": "2"}})
        expected = [
            {"adapters": ["a"]},
            {"adapters": ["a"], "paused": True},
            {"adapters": ["a"], "paused": True, "weights": {"version": "2"}},
        ]
        assert list(seen.values()) == [expected] * 3
        async with member(tmp_path / "coordinator", "late") as late:
            assert late.state == expected[-1]

    with_members(tmp_path, scenario, count=3, state={"adapters": ["a"]})


def test_results_of_a_telling_are_gathered_and_failures_named(tmp_path: Path) -> None:
    async def scenario(first: Coordination, second: Coordination) -> None:
        async def slowly(body: dict[str, Any]) -> int:
            await asyncio.sleep(0)
            return body["n"] * 10

        first.handlers["number"] = lambda body: body["n"]
        second.handlers["number"] = slowly
        assert sorted(await second.tell("number", {"n": 3})) == [3, 30]
        second.handlers["number"] = lambda body: 1 / 0
        with pytest.raises(EngineUnavailable, match=r"did 'number': w1 failed with ZeroDivisionError"):
            await first.tell("number", {"n": 3})
        assert await first.tell("apply") == [None, None]

    with_members(tmp_path, scenario)


def test_one_that_is_late_is_named(tmp_path: Path) -> None:
    async def scenario(first: Coordination, second: Coordination) -> None:
        never = asyncio.Event()
        first.handlers["wait"] = lambda body: None
        second.handlers["wait"] = lambda body: never.wait()
        with pytest.raises(EngineUnavailable, match=r"w1 did not do it within 0\.05 s"):
            await first.tell("wait", timeout=0.05)

    with_members(tmp_path, scenario)


def test_nobody_waits_for_one_that_ended(tmp_path: Path) -> None:
    async def scenario(first: Coordination) -> None:
        async with member(tmp_path / "coordinator", "mortal") as mortal:
            asked, never = asyncio.Event(), asyncio.Event()

            async def wait(body: dict[str, Any]) -> None:
                asked.set()
                await never.wait()

            first.handlers["wait"] = lambda body: 1
            mortal.handlers["wait"] = wait
            telling = asyncio.ensure_future(first.tell("wait", timeout=None))
            await asked.wait()
        assert await telling == [1]

    with_members(tmp_path, scenario, count=1)


def test_sections_are_entered_one_after_the_other_in_order(tmp_path: Path) -> None:
    async def scenario(*members: Coordination) -> None:
        order: list[int] = []
        inside = 0

        async def enter(number: int, one: Coordination) -> None:
            nonlocal inside
            async with one.exclusive("weights"):
                inside += 1
                assert inside == 1
                order.append(number)
                await asyncio.sleep(0)
                inside -= 1

        async with members[0].exclusive("weights"), members[1].exclusive("adapters"):
            tasks = []
            for number in range(12):
                tasks.append(asyncio.ensure_future(enter(number, members[number % 3])))
                # A question and its answer: what was asked before has arrived.
                await members[number % 3].tell("apply")
            assert not any(task.done() for task in tasks)
        await asyncio.gather(*tasks)
        assert order == list(range(12))

    with_members(tmp_path, scenario, count=3)


def test_a_section_ends_with_its_worker_and_leaves_what_it_promised(tmp_path: Path) -> None:
    async def scenario(first: Coordination) -> None:
        path = tmp_path / "coordinator"
        async with member(path, "mortal") as mortal, mortal.exclusive("weights", after={"held": False}):
            await mortal.tell("apply", state={"held": True})
            assert first.state["held"]
            entering = asyncio.ensure_future(first.exclusive("weights").__aenter__())
            await first.tell("apply")
            assert not entering.done()
            await mortal.close()
            await entering
            assert not first.state["held"]

    with_members(tmp_path, scenario, count=1)


def test_one_that_stops_waiting_for_a_section_is_not_in_the_way(tmp_path: Path) -> None:
    async def scenario(first: Coordination, second: Coordination) -> None:
        async with first.exclusive("weights"):
            waiting = asyncio.ensure_future(second.exclusive("weights").__aenter__())
            await second.tell("apply")
            waiting.cancel()
            await asyncio.wait([waiting])
        async with first.exclusive("weights"):
            pass

    with_members(tmp_path, scenario)


def test_calls_are_made_by_the_engines_side_with_their_bytes(tmp_path: Path) -> None:
    here = threading.get_ident()

    def double(arguments: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        assert threading.get_ident() != here
        return arguments["n"] * 2, blob * 2

    def refuse(arguments: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        raise RequestRejected("not like that")

    def fail(arguments: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        raise OSError("gone")

    async def scenario(first: Coordination, second: Coordination) -> None:
        blob = bytes(range(256)) * 4096
        answers = await asyncio.gather(
            *[one.call("double", {"n": n}, blob) for n in range(8) for one in (first, second)]
        )
        assert answers == [(n * 2, blob * 2) for n in range(8) for _ in range(2)]
        with pytest.raises(RequestRejected, match="not like that"):
            await first.call("refuse", {})
        with pytest.raises(EngineUnavailable, match="OSError: gone"):
            await first.call("fail", {})
        with pytest.raises(RequestRejected, match="has no 'shutdown'"):
            await first.call("shutdown", {})

    with_members(tmp_path, scenario, calls={"double": double, "refuse": refuse, "fail": fail})


@pytest.mark.parametrize("how", ["given up", "gone"])
def test_a_call_that_nobody_waits_for_is_cancelled(tmp_path: Path, how: str) -> None:
    """And calls that wait for the engine take no thread from those that need one."""
    cancelled: list[int] = []

    async def hang(arguments: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        begun.append(arguments["n"])
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(arguments["n"])
            raise
        return None, b""

    def double(arguments: dict[str, Any], blob: bytes) -> tuple[Any, bytes]:
        return arguments["n"] * 2, b""

    begun: list[int] = []

    async def scenario(first: Coordination, second: Coordination) -> None:
        hanging = [asyncio.create_task(first.call("hang", {"n": n})) for n in range(100)]
        while len(begun) < 100:
            await asyncio.sleep(0.001)
        assert await second.call("double", {"n": 2}) == (4, b"")
        if how == "gone":
            await first.close()
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        while len(cancelled) < 100:
            await asyncio.sleep(0.001)
        assert sorted(cancelled) == list(range(100))
        assert await second.call("double", {"n": 3}) == (6, b"")

    with_members(tmp_path, scenario, calls={"hang": hang, "double": double})


def test_what_json_has_no_place_for_is_refused(tmp_path: Path) -> None:
    async def scenario(first: Coordination) -> None:
        with pytest.raises(RequestRejected, match="can't be passed to the engine: Object of type object"):
            await first.call("x", {"value": object()})

    with_members(tmp_path, scenario, count=1)


def test_streams_come_item_by_item_and_end_when_given_up(tmp_path: Path) -> None:
    ended = threading.Event()

    async def count(arguments: dict[str, Any], blob: bytes) -> AsyncIterator[int]:
        try:
            for number in range(arguments["n"]):
                yield number
            if arguments.get("fail"):
                raise ValueError("enough")
            if arguments.get("hang"):
                await asyncio.Event().wait()
        finally:
            ended.set()

    async def scenario(first: Coordination) -> None:
        assert [item async for item in first.stream("count", {"n": 5})] == list(range(5))
        with pytest.raises(RequestRejected, match="enough"):
            async for _ in first.stream("count", {"n": 2, "fail": True}):
                pass
        ended.clear()
        stream = first.stream("count", {"n": 2, "hang": True})
        assert await anext(stream) == 0
        await stream.aclose()
        assert await asyncio.to_thread(ended.wait, 5)
        with pytest.raises(RequestRejected, match="has no stream 'x'"):
            await anext(first.stream("x", {}))

    with_members(tmp_path, scenario, count=1, streams={"count": count})


def test_the_engines_end_is_told_to_whoever_asks(tmp_path: Path) -> None:
    path = tmp_path / "coordinator"
    coordinator = Coordinator(path, {})
    coordinator.start()

    async def scenario() -> None:
        async with member(path, "w") as one:
            one.handlers["never"] = lambda body: asyncio.Event().wait()
            telling = asyncio.ensure_future(one.tell("never", timeout=None))
            await one.tell("apply")
            await asyncio.to_thread(coordinator.close)
            with pytest.raises(EngineUnavailable, match="coordinator has ended"):
                await telling
            with pytest.raises(EngineUnavailable, match="coordinator has ended"):
                await one.call("x", {})
        with pytest.raises(EngineUnavailable, match="can't be reached"):
            await Coordination(str(path), "too late").start()

    asyncio.run(scenario())


def test_a_change_of_the_engines_side_reaches_everybody(tmp_path: Path) -> None:
    path = tmp_path / "coordinator"
    coordinator = Coordinator(path, {})
    coordinator.start()

    async def scenario() -> None:
        async with member(path, "w") as one:
            changed = asyncio.Event()
            one.on_state = lambda state: changed.set()
            coordinator.change(paused=True)
            await changed.wait()
            assert one.state == {"paused": True}

    asyncio.run(scenario())
    coordinator.close()
    coordinator.change(paused=False)


def test_a_stranger_does_no_harm(tmp_path: Path) -> None:
    async def scenario(first: Coordination) -> None:
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2" + b"\0" * 8 + b"[]", b"\0\0\0\2" + b"\0" * 8 + b"{}"):
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "coordinator"))
            writer.write(data)
            assert await reader.read() == b""
            writer.close()
        assert await first.tell("apply") == [None]

    with_members(tmp_path, scenario, count=1)


def test_its_socket_is_private_and_a_place_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path / "coordinator", {})
    coordinator.start()
    assert (tmp_path / "coordinator").stat().st_mode & 0o777 == 0o600
    coordinator.close()
    with pytest.raises(StorageError, match="coordinator's socket"):
        Coordinator(tmp_path / "no" / "such", {}).start()
