"""A wire engine's frames: made once for a set of requests, of which only the counts are written anew at each step."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import repeat
from typing import Any, Final

from ...simulated.generation import SimulatedGeneration
from ...simulated.outputs import messages
from ...simulated.tokenizer import ByteTokenizer
from ...simulated.wire.frames import FrameCodec
from ...simulated.wire.structs import StandIn

WORD: Final = " word"
"""What a token says."""
_FIRST_MARK: Final = 0x5A5A0000
"""Counts as both codecs write them in four bytes; the real ones, smaller, are put in their place."""


class Frame:
    """One message's bytes, for any number of tokens of each of its requests."""

    def __init__(self, message: Any, codec: FrameCodec, count: struct.Struct) -> None:
        marks = range(_FIRST_MARK, _FIRST_MARK + len(message.rids))
        message.completion_tokens = list(marks)
        self._data = bytearray(codec.encode(message))
        self._count = count
        self._offsets = [self._data.index(count.pack(mark)) for mark in marks]

    def completed(self, counts: Sequence[int]) -> bytearray:
        """The frame with these counts, until it gets others."""
        pack, data = self._count.pack_into, self._data
        for offset, made in zip(self._offsets, counts, strict=True):
            pack(data, offset, made)
        return data

    def single(self) -> tuple[bytearray, int]:
        """The frame of a single request, and where `FrameMaker.put` puts its count."""
        (offset,) = self._offsets
        return self._data, offset


class FrameMaker:
    """Makes the messages of SGLang's detokenizer for requests of one worker."""

    def __init__(self, codec: FrameCodec, name: str, tokenizer: ByteTokenizer) -> None:
        self._codec = codec
        self._count = struct.Struct("<I" if name == "pickle" else ">I")
        self.put = self._count.pack_into
        """put(frame, offset, count)"""
        self._tokenizer = tokenizer
        self._token = ord("w")

    def frame(self, requests: Sequence[StandIn], *, grouped: bool) -> Frame:
        """What each step sends while the requests go on."""
        return Frame(self._message(requests, grouped=grouped), self._codec, self._count)

    def last(self, request: StandIn, *, tokens: int, unsent: int, reason: dict[str, Any]) -> bytes:
        """A request's end, with what it has not sent yet."""
        message = self._message([request], grouped=False)
        message.finished_reasons = [reason]
        message.output_strs = [WORD * unsent]
        message.output_ids = [message.output_ids[0] * unsent]
        message.completion_tokens = [tokens]
        encoded: bytes = self._codec.encode(message)
        return encoded

    def _message(self, requests: Sequence[StandIn], *, grouped: bool) -> Any:
        rows = []
        for request in requests:
            row = SimulatedGeneration(request, repeat(self._token), self._tokenizer, limit=1 << 20)
            row.step()
            row.text, row.finish_reason = WORD, None
            rows.append(row)
        ((_, message),) = messages(rows, grouped=grouped, weight_version="default", vocab_size=1)
        return message
