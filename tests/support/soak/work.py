"""What the soak test does with each curated module: real work whose result is checked. Runs in any interpreter."""

from __future__ import annotations

import importlib.util
import socket
import time
from collections.abc import Callable
from typing import Any

_PLAIN = {"text": "aä€😀" * 20, "numbers": list(range(200)), "nested": {"a": [None, True, 1.5]}}


def _error(kind: type[Exception], call: Callable[[], object]) -> str:
    """What the expected error says."""
    try:
        call()
    except kind as exc:
        return str(exc)
    raise AssertionError(f"no {kind.__name__}")


def _zmq(n: int, data: str) -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        push.connect(f"tcp://127.0.0.1:{port}")
        for i in range(50):
            push.send_multipart([b"%d" % i, b"x" * (i * n % 5000)])
        assert [pull.recv_multipart() for _ in range(50)] == [[b"%d" % i, b"x" * (i * n % 5000)] for i in range(50)]


def _msgspec(n: int, data: str) -> None:
    import msgspec

    class Point(msgspec.Struct):
        x: int
        names: list[str]
        more: dict[str, float] | None = None

    point = Point(n, ["a", "ä"], {"pi": 3.25})
    for _ in range(100):
        assert msgspec.json.decode(msgspec.json.encode(point), type=Point) == point
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(point), type=Point) == point
    wrong = b'{"x": "no", "names": []}'
    assert "`int`" in _error(msgspec.ValidationError, lambda: msgspec.json.decode(wrong, type=Point))


def _tokenizers(n: int, data: str) -> None:
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "[U]": 2}, unk_token="[U]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    for encoding in tokenizer.encode_batch(["a b c"] * (n % 40 + 1)):
        assert encoding.ids == [0, 1, 2]
    assert tokenizer.encode("b b").offsets == [(0, 1), (2, 3)]
    assert tokenizer.decode([0, 1]) == "a b"


def _orjson(n: int, data: str) -> None:
    import orjson

    for _ in range(100):
        assert orjson.loads(orjson.dumps(_PLAIN)) == _PLAIN
    assert "line 1" in _error(orjson.JSONDecodeError, lambda: orjson.loads(b"{"))


def _pydantic_core(n: int, data: str) -> None:
    import pydantic

    class Inner(pydantic.BaseModel):
        tags: list[str] = []

    class Outer(pydantic.BaseModel):
        number: int = pydantic.Field(gt=-1)
        inner: Inner

    for i in range(50):
        made = Outer.model_validate_json(f'{{"number": "{i}", "inner": {{"tags": ["t{n}"]}}}}')
        assert made.model_dump() == {"number": i, "inner": {"tags": [f"t{n}"]}}
    wrong = {"number": -5, "inner": {}}
    assert "greater_than" in _error(pydantic.ValidationError, lambda: Outer.model_validate(wrong))


def _httptools(n: int, data: str) -> None:
    import httptools

    class Seen:
        url, body, done, headers = b"", b"", False, 0

        def on_url(self, url: bytes) -> None:
            self.url += url

        def on_header(self, name: bytes, value: bytes) -> None:
            self.headers += 1

        def on_body(self, body: bytes) -> None:
            self.body += body

        def on_message_complete(self) -> None:
            self.done = True

    for i in range(30):
        seen, raw = Seen(), b"POST /p?q=%d HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello" % i
        parser = httptools.HttpRequestParser(seen)
        for at in range(0, len(raw), n % 7 + 1):
            parser.feed_data(raw[at : at + n % 7 + 1])
        assert (seen.url, seen.body, seen.done, seen.headers) == (b"/p?q=%d" % i, b"hello", True, 2)
        assert httptools.parse_url(b"http://h:1/p?q").port == 1


def _uvloop(n: int, data: str) -> None:
    import asyncio

    import uvloop

    async def echo() -> bytes:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        other_reader, other_writer = await asyncio.open_connection(sock=theirs)
        for i in range(20):
            writer.write(b"%d\n" % i)
            other_writer.write(await other_reader.readline())
        answers = b"".join([await reader.readline() for _ in range(20)])
        writer.close()
        other_writer.close()
        await asyncio.sleep(0.001)
        return answers

    loop = uvloop.new_event_loop()
    try:
        assert loop.run_until_complete(echo()) == b"".join(b"%d\n" % i for i in range(20))
    finally:
        loop.close()


def _numpy(n: int, data: str) -> None:
    import numpy as np

    a = np.arange(64.0).reshape(8, 8) + np.eye(8) * (n % 100 + 100)
    assert np.allclose(a @ np.linalg.inv(a), np.eye(8))
    assert np.array_equal(np.sort(np.array([3, 1, 2])), [1, 2, 3])
    assert np.frombuffer(np.arange(5, dtype=np.int32).tobytes(), dtype=np.int32).sum() == 10
    assert [str(x) for x in np.array(["a", "b"])] == ["a", "b"]


def _regex(n: int, data: str) -> None:
    import regex

    pattern = regex.compile(r"\p{L}+|\p{N}{1,3}|(?<rest>[^\s\p{L}\p{N}]++)")
    for i in range(50):
        assert pattern.findall(f"été {i:02} ") == ["", ""]
        assert [m.group() for m in pattern.finditer(f"été {i:02}!")] == ["été", f"{i:02}", "!"]


def _psutil(n: int, data: str) -> None:
    import os

    import psutil

    me = psutil.Process()
    assert me.pid == os.getpid()
    assert me.memory_info().rss > 10**6
    assert psutil.virtual_memory().total > 0
    assert me.num_threads() >= 1


def _cffi_backend(n: int, data: str) -> None:
    import cffi

    ffi = cffi.FFI()
    ffi.cdef("size_t strlen(const char *); struct pair { int a; double b; };")
    libc = ffi.dlopen(None)
    for i in range(30):
        assert libc.strlen(b"x" * i) == i
    pair = ffi.new("struct pair *", {"a": n, "b": 0.5})
    assert (pair.a, pair.b) == (n, 0.5)


def _aiohttp(n: int, data: str) -> None:
    import asyncio

    from aiohttp import _http_parser, _http_writer
    from aiohttp._websocket import mask
    from multidict import CIMultiDict

    head = _http_writer._serialize_headers("HTTP/1.1 200 OK", CIMultiDict({"A": "b"}))
    assert head == b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n"
    text = bytearray(b"hello")
    mask._websocket_mask_cython(b"\1\2\3\4", text)
    mask._websocket_mask_cython(b"\1\2\3\4", text)
    assert text == b"hello"
    loop = asyncio.new_event_loop()
    try:
        parser = _http_parser.HttpRequestParser(None, loop, 2**16)
        messages, _, _ = parser.feed_data(b"GET /x?y=%d HTTP/1.1\r\nHost: h\r\n\r\n" % n)
        assert str(messages[0][0].url) == f"/x?y={n}"
        assert messages[0][0].headers["host"] == "h"
    finally:
        loop.close()


def _frozenlist(n: int, data: str) -> None:
    from frozenlist import FrozenList, PyFrozenList

    assert FrozenList is not PyFrozenList
    values = FrozenList(range(n % 50))
    values.freeze()
    assert list(values) == list(range(n % 50))
    assert "frozen" in _error(RuntimeError, lambda: values.append(1))


def _propcache(n: int, data: str) -> None:
    from propcache import _helpers_c

    class Once:
        calls = 0

        @_helpers_c.cached_property
        def value(self) -> int:
            self.calls += 1
            return n

    once = Once()
    assert [once.value, once.value, once.calls] == [n, n, 1]


def _yarl(n: int, data: str) -> None:
    from yarl import URL, _quoting_c

    assert _quoting_c._Quoter()("ä b") == "%C3%A4%20b"
    assert str(URL(f"http://h/ä?q={n}").with_fragment("f")) == f"http://h/%C3%A4?q={n}#f"


def _tiktoken(n: int, data: str) -> None:
    import tiktoken

    ranks = {bytes([i]): i for i in range(256)} | {b"ab": 256, b"abc": 257}
    encoding = tiktoken.Encoding("soak", pat_str=r"\w+|\W+", mergeable_ranks=ranks, special_tokens={"<|e|>": 258})
    assert encoding.encode("abc ab<|e|>", allowed_special="all") == [257, 32, 256, 258]
    assert encoding.decode_batch([[257, 256]] * (n % 8 + 1), num_threads=2) == ["abcab"] * (n % 8 + 1)


def _sentencepiece(n: int, data: str) -> None:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=f"{data}/soak.model")
    for text in ("hello world", f"number {n}"):
        pieces = processor.encode(text)
        assert processor.decode(pieces) == text


def _cbor2(n: int, data: str) -> None:
    import cbor2

    assert cbor2.loads(cbor2.dumps({**_PLAIN, "n": n})) == {**_PLAIN, "n": n}


def _msgpack(n: int, data: str) -> None:
    import msgpack
    from msgpack import _cmsgpack

    assert msgpack.Packer is _cmsgpack.Packer, "not the pure Python one"
    assert msgpack.unpackb(msgpack.packb({**_PLAIN, "n": n})) == {**_PLAIN, "n": n}


def _ormsgpack(n: int, data: str) -> None:
    import ormsgpack

    assert ormsgpack.unpackb(ormsgpack.packb({**_PLAIN, "n": n})) == {**_PLAIN, "n": n}


WORK: dict[str, Callable[[int, str], None]] = {
    "_cffi_backend": _cffi_backend,
    "aiohttp": _aiohttp,
    "cbor2": _cbor2,
    "frozenlist": _frozenlist,
    "httptools": _httptools,
    "msgpack": _msgpack,
    "msgspec": _msgspec,
    "numpy": _numpy,
    "ormsgpack": _ormsgpack,
    "orjson": _orjson,
    "propcache": _propcache,
    "psutil": _psutil,
    "pydantic_core": _pydantic_core,
    "regex": _regex,
    "sentencepiece": _sentencepiece,
    "tiktoken": _tiktoken,
    "tokenizers": _tokenizers,
    "uvloop": _uvloop,
    "yarl": _yarl,
    "zmq": _zmq,
}
"""By the name on the curated list."""

ALSO = {"_cffi_backend": "cffi", "pydantic_core": "pydantic"}
"""What a module is used through."""


def installed() -> list[str]:
    """The modules that are here."""
    return [name for name in WORK if all(map(importlib.util.find_spec, {name, ALSO.get(name, name)}))]


def work(names: list[str], seconds: float, data: str) -> dict[str, Any]:
    """Go round through the modules for `seconds`, at least once; returns how often each was used."""
    deadline = time.monotonic() + seconds
    rounds = dict.fromkeys(names, 0)
    n = 0
    while True:
        for name in names:
            n += 1
            try:
                WORK[name](n, data)
            except BaseException as exc:
                exc.add_note(f"in {name}, turn {n}")
                raise
            rounds[name] += 1
            if time.monotonic() > deadline and min(rounds.values()):
                return rounds
