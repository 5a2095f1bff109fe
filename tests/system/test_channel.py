"""The control channel: messages keep their borders, descriptors arrive, an end is noticed."""

from __future__ import annotations

import os

import pytest

from sglang_subgw.system.channel import Channel, ChannelClosedError


@pytest.fixture
def ends():
    pair = Channel.pair()
    yield pair
    for end in pair:
        end.close()


def test_messages_keep_their_borders_and_order(ends):
    ours, theirs = ends
    ours.send("drain", timeout=1.5)
    ours.send("abort", rid="ü" * 1000)
    assert theirs.receive() == ({"kind": "drain", "timeout": 1.5}, [])
    assert theirs.receive() == ({"kind": "abort", "rid": "ü" * 1000}, [])


def test_a_descriptor_arrives_as_a_copy(ends):
    ours, theirs = ends
    read_end, write_end = os.pipe()
    ours.send("connection", fds=(write_end,))
    os.close(write_end)
    message, (copy,) = theirs.receive()
    os.write(copy, b"x")
    os.close(copy)
    assert message == {"kind": "connection"}
    assert os.read(read_end, 10) == b"x"
    assert os.read(read_end, 10) == b""
    os.close(read_end)


def test_the_other_sides_end_is_noticed_after_its_last_message(ends):
    ours, theirs = ends
    theirs.send("stopped")
    theirs.close()
    assert ours.receive()[0] == {"kind": "stopped"}
    with pytest.raises(ChannelClosedError):
        ours.receive()
    with pytest.raises(ChannelClosedError):
        ours.send("drain", timeout=0)


def test_a_side_that_does_not_read_blocks_nobody(ends):
    ours, _ = ends
    ours.setblocking(False)
    with pytest.raises(BlockingIOError):
        for _ in range(100_000):
            ours.send("abort", rid="x" * 1000)


def test_nothing_there_yet_is_not_an_end(ends):
    _, theirs = ends
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.receive()


def test_a_message_that_is_too_large_is_refused_before_it_is_sent(ends):
    ours, theirs = ends
    with pytest.raises(ValueError, match="over 65536"):
        ours.send("abort", rid="x" * 70_000)
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.receive()
