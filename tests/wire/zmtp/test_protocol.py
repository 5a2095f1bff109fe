"""ZMTP as a shard speaks it: any split of what a peer says gives its messages, and what isn't ZMTP is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_subgw.errors import WireError
from sglang_subgw.wire.zmtp.protocol import Peer, head, hello

MESSAGES = st.lists(st.binary(max_size=40) | st.integers(250, 70_000).map(bytes), max_size=8)
GREETING_BYTES = 64


def said(messages: list[bytes], *, between: bytes = b"") -> bytes:
    return hello("PUSH") + b"".join(head(len(message)) + message + between for message in messages)


def read(peer: Peer, data: bytes) -> list[bytes]:
    return peer.feed(memoryview(data))


@given(MESSAGES, st.lists(st.integers(0, 400), max_size=30))
def test_messages_are_the_same_however_they_are_cut(messages: list[bytes], sizes: list[int]) -> None:
    data, peer, got, at = said(messages), Peer("PUSH"), [], 0
    for size in sizes:
        if size and data[at : at + size]:
            got += read(peer, data[at : at + size])
        at += size
    if data[at:]:
        got += read(peer, data[at:])
    assert got == messages
    assert peer.ready
    assert peer.answers == b""


def test_byte_by_byte() -> None:
    messages = [b"", b"a", bytes(255), bytes(256)]
    peer = Peer("PUSH")
    got = [message for byte in said(messages) for message in read(peer, bytes((byte,)))]
    assert got == messages


def test_a_ping_is_answered_with_its_context() -> None:
    peer = Peer("PUSH")
    assert read(peer, said([b"one", b"two"], between=b"\x04\x0b\x04PING\x00\x0acont")) == [b"one", b"two"]
    assert peer.answers == 2 * b"\x04\x09\x04PONGcont"


def test_a_ping_with_too_much_is_answered_as_far_as_it_may_go() -> None:
    peer = Peer("PUSH")
    read(peer, hello("PUSH") + b"\x06" + (257).to_bytes(8) + b"\x04PING\x00\x0a" + b"c" * 250)
    assert peer.answers == b"\x04\x15\x04PONG" + b"c" * 16


def test_what_else_is_commanded_is_passed_over() -> None:
    assert read(Peer("PUSH"), said([b"x"], between=b"\x04\x05\x04WHAT")) == [b"x"]


def test_a_peer_that_also_speaks_older_versions_is_heard() -> None:
    data = b"\xff\0\0\0\0\0\0\0\x01\x7f" + said([b"x"])[10:]
    assert read(Peer("PUSH"), data) == [b"x"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "no greeting"),
        (b"\xff\0\0\0\0\0\0\0\x01\x01", "no greeting"),
        (b"\xff\0\0\0\0\0\0\0\x01\x7f\x01", "ZMTP 1, and not 3"),
        (hello("PUSH").replace(b"NULL", b"PLAIN")[:GREETING_BYTES], "mechanism b'PLAIN'"),
        (hello("PULL"), "kind b'PULL'"),
        (hello("PUSH")[:GREETING_BYTES] + b"\x04\x06\x05READY", "kind None"),
        (hello("PUSH")[:GREETING_BYTES] + b"\x04\x0a\x05READY\x0bSoc", "cut off"),
        (hello("PUSH")[:GREETING_BYTES] + b"\x00\x01x", "before READY"),
        (hello("PUSH")[:GREETING_BYTES] + b"\x04\x00", "without a name"),
        (hello("PUSH")[:GREETING_BYTES] + b"\x04\x0a\x05ERROR\x03bad", "it refused: b'bad'"),
        (hello("PUSH") + b"\x02" + b"\xff" * 8, "a frame of"),
    ],
)
def test_what_is_no_zmtp_of_the_right_kind_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        read(Peer("PUSH"), data)


@given(st.binary(min_size=1, max_size=200), st.integers(0, 120))
def test_any_bytes_are_messages_or_refused(rest: bytes, kept: int) -> None:
    with contextlib.suppress(WireError):
        read(Peer("PUSH"), said([])[:kept] + rest)
