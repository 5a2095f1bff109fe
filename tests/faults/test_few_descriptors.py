"""More clients than file descriptors: those that are connected are served, the others wait, nothing breaks or spins."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from sglang_subgw.config import Mode
from sglang_subgw.contract import Segment, Word
from sglang_subgw.contract.segment import NAME_PREFIX
from sglang_subgw.simulated import SimulatedEngineProcess
from sglang_subgw.system.channel import Channel, DescriptorLostError
from support.attached import CommandProcess, attached
from support.client import Address, client, request_bytes
from support.faults import until
from support.stack import Stack, generate_body

LIMIT: Final = 256
CLIENTS: Final = 1000
LIMITED: Final = ("sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh")
REQUEST: Final = request_bytes("/generate", generate_body("abc", 2))


@pytest.fixture(autouse=True)
def many_descriptors_here() -> Iterator[None]:
    """For this side of the connections."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= before[0] < 2 * CLIENTS:
        wanted = 2 * CLIENTS if before[1] == resource.RLIM_INFINITY else min(2 * CLIENTS, before[1])
        assert wanted > CLIENTS + 100, "this machine lets nobody have so many clients"
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


class Crowd:
    """Clients that keep their connections once they are served, until they are told to leave."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.served = 0
        self._leave = asyncio.Event()

    async def come(self, count: int) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._be_served()) for _ in range(count)]

    async def _be_served(self) -> None:
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            writer.write(REQUEST)
            answer = await reader.readuntil(b"}}")
            assert b" 200 OK" in answer, answer
            assert b'"text":"ab"' in answer, answer
            self.served += 1
            await self._leave.wait()
        finally:
            writer.close()
            await writer.wait_closed()

    async def settled(self) -> int:
        """How many are served, once no more of them are."""
        count = -1
        async with asyncio.timeout(20):
            while self.served != count or not count:
                count = self.served
                await asyncio.sleep(1.0)
        return count

    def leave(self) -> None:
        self._leave.set()


def cpu_seconds(pid: int) -> float:
    """Of a process and its children that run, until now."""
    total = 0.0
    for one in (pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def underway(gateway: CommandProcess) -> list[int]:
    """Connections that count as on their way to each shard."""
    (name,) = (path.name for path in Path("/dev/shm").glob(f"{NAME_PREFIX}{gateway.pid}_*"))
    with Segment.attach(name) as segment:
        return [slot.get(Word.ACCEPTED) - slot.get(Word.CONNECTIONS_SEEN) for slot in segment.slots]


async def crowd_comes_and_goes(gateway: CommandProcess) -> None:
    crowd = Crowd(gateway.address)
    clients = await crowd.come(CLIENTS)
    served = await crowd.settled()
    # Of two processes with so many descriptors each, or of one; what it needs for itself is no more than half.
    assert LIMIT // 2 < served < 2 * LIMIT
    assert not any(one.done() for one in clients), "a client was refused"
    before, seconds = cpu_seconds(gateway.pid), 2.0
    await asyncio.sleep(seconds)
    assert cpu_seconds(gateway.pid) - before < 0.5 * seconds, "it spins"
    assert crowd.served == served
    crowd.leave()
    async with asyncio.timeout(30):
        await asyncio.gather(*clients)
    assert crowd.served == CLIENTS


def test_of_1000_clients_at_256_descriptors_all_are_served_in_turn_and_none_is_lost(mode: Mode, runtime_dir: Path):
    with (
        SimulatedEngineProcess(runtime_dir) as engine,
        attached(engine.pid, mode=mode, prefix=LIMITED) as gateway,
    ):
        assert gateway.banner
        asyncio.run(crowd_comes_and_goes(gateway))
        with client(gateway.address) as one:
            assert one.post("/generate", json=generate_body("abc", 3)).json()["text"] == "abc"
        until(lambda: not any(underway(gateway)))
        lines = [line for line in gateway.log.splitlines() if "Connections wait: " in line]
        assert 1 <= len(lines) <= 5, gateway.log
        assert "lost" not in gateway.log
        assert "Traceback" not in gateway.log, gateway.log
        gateway.send(signal.SIGTERM)
        assert gateway.wait() == 0, gateway.log


def test_a_descriptor_that_has_no_place_is_told_and_the_next_message_arrives():
    ours, theirs = Channel.pair()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    read_end, write_end = os.pipe()
    try:
        ours.send("connection", fds=(write_end,))
        ours.send("abort", rid="x")
        os.close(write_end)
        # The next descriptor would be the one that has just been closed.
        resource.setrlimit(resource.RLIMIT_NOFILE, (write_end, hard))
        with pytest.raises(DescriptorLostError, match="no place for the descriptor of 'connection'"):
            theirs.receive()
        assert theirs.receive() == ({"kind": "abort", "rid": "x"}, [])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert os.read(read_end, 1) == b"", "the lost descriptor is still open somewhere"
        os.close(read_end)
        ours.close()
        theirs.close()


@pytest.mark.parametrize("mode", [Mode.THREAD], ids=str)
def test_a_connection_that_a_shard_has_no_place_for_breaks_nothing_and_is_not_counted_for_ever(
    make_stack: Callable[..., Stack], mode: Mode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """In a thread of this process, since what the kernel does to every receiver is done to some of them here."""
    stack = make_stack(config={"keep_alive_seconds": 60.0})
    receive = Channel.receive
    lost = [0]

    def losing(self: Channel) -> object:
        message, fds = receive(self)
        if fds and message["kind"] == "connection" and lost[0] < 30:
            lost[0] += 1
            os.close(fds[0])
            raise DescriptorLostError("connection")
        return message, fds

    monkeypatch.setattr(Channel, "receive", losing)
    deadline = time.monotonic() + 10
    while lost[0] < 30:
        assert time.monotonic() < deadline
        with pytest.raises(Exception, match="disconnected|reset|closed"), stack.client() as one:
            one.get("/ping")
    assert stack.generate("abc", 3)["text"] == "abc"
    slots = stack.gateway.segment.slots
    assert stack.wait_for(lambda: all(slot.get(Word.ACCEPTED) == slot.get(Word.CONNECTIONS_SEEN) for slot in slots))
    assert 1 <= caplog.text.count("lost a connection") <= 2, "once for each shard"
    assert [shard["generation"] for shard in stack.gateway.shards] == [1, 1]
    stack.check()
