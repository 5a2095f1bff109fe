"""Streams as clients meet them: slow readers, old protocols, pipelined requests, a middleware in between."""

from __future__ import annotations

import socket
from collections.abc import Callable

from support.client import parse_events, raw_request, read_until, request_bytes
from support.stack import Stack, echoed, generate_body

TOKENS = 2500


def test_a_client_that_reads_late_gets_all_of_its_text_and_delays_nobody(make_stack: Callable[..., Stack]):
    stack = make_stack(shards=1, step_seconds=0.001)
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.settimeout(30)
    slow.connect(stack.address)
    slow.sendall(request_bytes("/generate", generate_body("<01>", TOKENS, stream=True)))
    assert stack.engine.wait_for(lambda: stack.engine.running() == 1)
    # Cumulative: 2,500 events of up to 2,500 characters are more than any socket's buffers take.
    while stack.engine.running():
        assert stack.stream("/generate", generate_body("<02>", 20))[-1]["text"] == echoed("<02>", 20)
    body = read_until(slow, b"data: [DONE]\n\n")
    slow.close()
    chunks, rest = [], body.partition(b"\r\n\r\n")[2]
    while rest and (size := int(rest[: rest.index(b"\r\n")], 16)):
        start = rest.index(b"\r\n") + 2
        chunks.append(rest[start : start + size])
        rest = rest[start + size + 2 :]
    events = parse_events(b"".join(chunks).decode())
    assert events[-1]["text"] == echoed("<01>", TOKENS)
    assert len(events) < TOKENS, "what it could not take became one"
    stack.wait_idle()
    stack.check()


def test_http_1_0_and_pipelined_requests_get_whole_streams(make_stack: Callable[..., Stack]):
    stack = make_stack(shards=1)
    body = generate_body("<01>", 20, stream=True)
    old = socket.create_connection(stack.address, timeout=20)
    old.sendall(request_bytes("/generate", body).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    data = b""
    while piece := old.recv(65536):
        data += piece
    old.close()
    assert echoed("<01>", 20).encode() in data
    assert b"data: [DONE]" in data
    sock = raw_request(stack.address, "/generate", body)
    sock.sendall(request_bytes("/generate", generate_body("<02>", 20, stream=True)))
    both = read_until(sock, b"0\r\n\r\n")
    both += b"" if both.count(b"[DONE]") == 2 else read_until(sock, b"0\r\n\r\n")
    sock.close()
    assert both.count(b" 200 ") == 2
    assert both.index(echoed("<01>", 20).encode()) < both.index(echoed("<02>", 20).encode())


def test_a_middleware_that_changes_the_body_sees_every_part_of_a_stream(make_stack: Callable[..., Stack]):
    stack = make_stack(shards=1, config={"app": "support.apps.plain:swapped"})
    with stack.client() as client:
        answer = client.post("/generate", json=generate_body("<01>", 50, stream=True))
    assert parse_events(answer.text.swapcase())[-1]["text"] == echoed("<01>", 50)
    stack.wait_idle()
    stack.check()
