"""Bytes and pictures in a call's arguments: they arrive in the engine's process as they were."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sglang_subgw.coordination.carried_bytes import with_bytes, without_bytes
from sglang_subgw.errors import RequestRejected
from support.shard_values import Shard, with_shard

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import strategies as st  # noqa: E402

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text().filter(lambda key: key[:1] != "\0"), inner)
)


@hypothesis.given(st.dictionaries(st.text(), VALUES))
def test_whatever_goes_in_comes_out(arguments: dict[str, Any]) -> None:
    plain, blob = without_bytes(arguments)
    assert with_bytes(json.loads(json.dumps(plain)), blob) == arguments


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "image_data holds a builtins.object, which can't be passed"),
        ([{(1,): 2}], "image_data holds an object with keys"),
        ({"\0bytes": [0, 1]}, "image_data holds an object with keys"),
    ],
)
def test_what_can_t_be_carried_is_refused(value: Any, said: str) -> None:
    with pytest.raises(RequestRejected, match=said):
        without_bytes({"image_data": value})


def test_numbers_as_keys_are_what_json_makes_of_them() -> None:
    plain, _ = without_bytes({"sampling_params": {"logit_bias": {5: 1.0}}})
    assert json.loads(json.dumps(plain)) == {"sampling_params": {"logit_bias": {"5": 1.0}}}


class Picture:
    """What PIL's have, as far as it is used."""

    __module__ = "PIL.Image"

    def save(self, file: Any, form: str) -> None:
        if form != "PNG":
            raise OSError(form)
        file.write(b"a PNG")


class Broken(Picture):
    """One of a kind that can't be written so."""

    __module__ = "PIL.Image"

    def save(self, file: Any, form: str) -> None:
        raise OSError("cannot write mode CMYK as PNG")


def test_a_picture_becomes_a_png() -> None:
    assert with_bytes(*without_bytes({"image_data": [Picture()]})) == {"image_data": [b"a PNG"]}
    with pytest.raises(RequestRejected, match="image_data holds an image that can't be passed on: cannot write mode"):
        without_bytes({"image_data": Broken()})


def test_an_image_of_bytes_reaches_the_engine_s_side(runtime_dir: Path) -> None:
    image = bytes(range(256)) * 100

    async def scenario(shard: Shard) -> None:
        await shard.engine.async_generate("x", image_data=[image, "data:,"], video_data=b"")
        with pytest.raises(RequestRejected, match="audio_data holds a builtins.object"):
            await shard.engine.async_generate("x", audio_data=object())
        [(_, asked)] = shard.simulated.engine_side.asked
        assert (asked["image_data"], asked["video_data"]) == ([image, "data:,"], b"")
        await asyncio.sleep(0)

    with_shard(runtime_dir, scenario)
