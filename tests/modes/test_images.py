"""Extension images: which packages, and that each interpreter has its own working copy."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from sglang_subgw.config import Mode
from sglang_subgw.errors import ConfigError
from sglang_subgw.modes import images
from support.modes import skip_module_without

skip_module_without(Mode.SUBINTERP)

from sglang_subgw.modes import interpreters  # noqa: E402


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("auto", set(images.CURATED)),
        ("off", set()),
        ("off,+zmq", {"zmq"}),
        ("auto,-uvloop", set(images.CURATED) - {"uvloop"}),
        ("+mine", set(images.CURATED) | {"mine"}),
        ("", set(images.CURATED)),
    ],
)
def test_select(words, expected):
    assert set(images.select(words)) == expected


@pytest.mark.parametrize("words", ["on", "+", "auto,~zmq", "+a.b"])
def test_select_refuses_other_words(words):
    with pytest.raises(ConfigError, match="--images"):
        images.select(words)


_WORK = """
import sys
sys.path[:] = {path!r}
from sglang_subgw.modes import images
images.install(images.select("auto"), {scratch!r})
import msgspec, httptools, tokenizers, uvloop, zmq

class Point(msgspec.Struct):
    x: int
    name: str

for i in range(300):
    assert msgspec.json.decode(msgspec.json.encode(Point(i, "n")), type=Point) == Point(i, "n")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode([i, None, "ä"])) == [i, None, "ä"]

context = zmq.Context()
pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
pull.bind("inproc://x"); push.connect("inproc://x")
for i in range(300):
    push.send(b"%d" % i)
    assert pull.recv() == b"%d" % i
pull.close(); push.close(); context.term()

tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({{"a": 0, "b": 1, "[U]": 2}}, unk_token="[U]"))
tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
for i in range(300):
    assert tokenizer.encode_batch(["a b c", "b"])[0].ids == [0, 1, 2]

async def answer():
    return {number}
loop = uvloop.new_event_loop()
assert loop.run_until_complete(answer()) == {number}
loop.close()
with open({out!r}, "w") as f:
    f.write("%d %s" % ({number}, zmq.__file__))
images.release()
"""


def test_every_interpreter_works_with_its_own_copies_at_once(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    interpreters.preload()
    errors = []

    def run(number: int) -> None:
        interpreter = interpreters.create()
        try:
            out = str(tmp_path / f"out{number}")
            code = _WORK.format(path=list(sys.path), scratch=str(scratch), number=number, out=out)
            interpreter.exec(code)
        except Exception as exc:
            errors.append(exc)
        finally:
            interpreter.close()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [(tmp_path / f"out{n}").read_text().split()[0] for n in range(4)] == list("0123")
    assert os.listdir(scratch) == [], "the copies are unlinked once they are loaded"


def test_without_an_image_the_module_is_refused_by_name(tmp_path):
    interpreters.preload()
    interpreter = interpreters.create()
    try:
        with pytest.raises(interpreters.ExecutionFailed, match="msgspec"):
            interpreter.exec(f"import sys; sys.path[:] = {list(sys.path)!r}; import msgspec")
    finally:
        interpreter.close()
