"""Bad input: each is a 4xx with a message, the next good request is answered, and the router lives."""

from __future__ import annotations

import json

import pytest

from support.client import read_until, request_bytes
from support.stack import Stack


def body(**fields) -> bytes:
    return json.dumps({"text": "abc", "sampling_params": {"max_new_tokens": 2}, **fields}).encode()


def chat(**fields) -> bytes:
    return json.dumps({"model": "simulated-model", "messages": [{"role": "user", "content": "a"}], **fields}).encode()


CASES = {
    "malformed JSON": ("/generate", b'{"text": "abc"'),
    "no object": ("/generate", b"[1]"),
    "empty body": ("/generate", b""),
    "text of a wrong type": ("/generate", body(text=17)),
    "stream of a wrong type": ("/generate", body(stream="yes")),
    "sampling_params of a wrong type": ("/generate", body(sampling_params="x")),
    "temperature of a wrong type": ("/generate", body(sampling_params={"temperature": "hot"})),
    "stop of a wrong type": ("/generate", body(sampling_params={"stop": [1]})),
    "no prompt": ("/generate", b'{"sampling_params": {}}'),
    "empty prompt": ("/generate", body(text="")),
    "empty input_ids": ("/generate", b'{"input_ids": []}'),
    "prompt over the context length": ("/generate", body(text="x" * 5000)),
    "negative max_new_tokens": ("/generate", body(sampling_params={"max_new_tokens": -1})),
    "unknown field": ("/generate", body(no_such_field=1)),
    "unknown sampling parameter": ("/generate", body(sampling_params={"no_such_parameter": 1})),
    "temperature -1": ("/generate", body(sampling_params={"temperature": -1})),
    "top_p 0": ("/generate", body(sampling_params={"top_p": 0})),
    "n 0": ("/generate", body(sampling_params={"n": 0})),
    "ids out of the vocabulary": ("/generate", json.dumps({"input_ids": [10**6]}).encode()),
    "negative ids": ("/generate", json.dumps({"input_ids": [-1]}).encode()),
    "ids over 64 bits": ("/generate", json.dumps({"input_ids": [2**70]}).encode()),
    "boolean ids": ("/generate", b'{"input_ids": [true, false]}'),
    "two prompts": ("/generate", body(input_ids=[1, 2])),
    "same rid twice": ("/generate", body(text=["a", "b"], rid=["r", "r"])),
    "nested brackets": ("/generate", b"[" * 2**20),
    "invalid UTF-8": ("/generate", b'{"text": "\xff\xfe"}'),
    "lone surrogate": ("/generate", b'{"text": "\\ud800"}'),
    "NaN": ("/generate", b'{"text": "abc", "sampling_params": {"temperature": NaN}}'),
    "infinity": ("/generate", b'{"text": "abc", "sampling_params": {"temperature": 1e999}}'),
    "too many stop strings": ("/generate", body(sampling_params={"stop": ["x"] * 33})),
    "broken stop regex": ("/generate", body(sampling_params={"stop_regex": "("})),
    "two grammars": ("/generate", body(sampling_params={"regex": "a", "json_schema": "{}"})),
    "logit bias out of the vocabulary": ("/generate", body(sampling_params={"logit_bias": {"999999": 1}})),
    "unknown model": ("/v1/chat/completions", chat(model="other")),
    "chat without messages": ("/v1/chat/completions", chat(messages=[])),
    "chat with an unknown field": ("/v1/chat/completions", chat(no_such_field=1)),
    "chat with temperature -1": ("/v1/chat/completions", chat(temperature=-1)),
    "chat with n 0": ("/v1/chat/completions", chat(n=0)),
    "chat with negative max_tokens": ("/v1/chat/completions", chat(max_tokens=-5)),
    "completion of an empty prompt": ("/v1/completions", b'{"model": "simulated-model", "prompt": ""}'),
    "completion with n 0": ("/v1/completions", b'{"model": "simulated-model", "prompt": "a", "n": 0}'),
}


@pytest.mark.parametrize(("path", "content"), CASES.values(), ids=CASES.keys())
def test_it_is_refused_and_the_next_request_is_answered(served: Stack, path, content):
    with served.client() as one:
        response = one.post(path, content=content, headers={"content-type": "application/json"})
        assert 400 <= response.status_code < 500, response.text
        assert len(json.dumps(response.json())) > 20
        good = one.post("/generate", json={"text": "abc", "sampling_params": {"max_new_tokens": 4}})
    assert good.json()["text"] == "abca"


@pytest.mark.parametrize(("path", "content"), CASES.values(), ids=CASES.keys())
def test_a_stream_is_refused_before_it_starts(served: Stack, path, content):
    if not content.endswith(b"}") or b'"stream"' in content:
        pytest.skip("not an object that could ask for a stream")
    with served.client() as one:
        response = one.post(path, content=content[:-1] + b', "stream": true}')
        assert 400 <= response.status_code < 500, response.text


def test_not_http_at_all(served: Stack):
    import socket

    with socket.create_connection(served.address, timeout=10) as sock:
        sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n")
        while sock.recv(65536):
            pass
    assert served.generate("abc", 3)["text"] == "abc"


def test_unknown_route_says_so(served: Stack):
    with served.client() as one:
        response = one.post("/v1/decisions", json={})
        assert response.status_code in (400, 404)
        assert "/v1/decisions" in response.text


def test_a_body_in_two_halves(served: Stack):
    import socket

    request = request_bytes("/generate", {"text": "abc", "sampling_params": {"max_new_tokens": 3}})
    with socket.create_connection(served.address, timeout=10) as sock:
        sock.sendall(request[:-10])
        sock.sendall(request[-10:])
        assert b'"abc"' in read_until(sock, b"meta_info")
