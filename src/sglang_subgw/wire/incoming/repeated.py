"""A stream's next message by its last one: of forty-eight pickled fields only the new token's differ.

SGLang up to 0.5.22 sends one message per token to each of several workers, later versions when only one stream of a
worker's has news. Half of what such a message costs a shard is to unpickle it, mostly the names of its fields. What a
message shares with its stream's first one is compared here as bytes, from its first opcode to its last, and the rest
read: one that differs in anything else is not read here.
"""

from __future__ import annotations

from array import array
from typing import Any, Final, NamedTuple

from ..message import Message

_PROTO_FRAME: Final = b"\x80\x95"
_BODY: Final = 11
"""Where a pickle's content begins: after PROTO and FRAME, whose length differs."""
_STRING: Final = 0x8C
_BYTES: Final = 0x43
_INT_SIZES: Final = {0x4B: 1, 0x4D: 2, 0x4A: 4}
_MEMOIZE: Final = b"\x94"
_LIST: Final = b"]" + _MEMOIZE
_MOST: Final = 8192
"""Streams that are remembered at once, each with about 4 kB."""
_PARTS_KEPT: Final = 1024


class _RepeatedStream(NamedTuple):
    """What the messages of one stream share: the bytes between those of its new token, and all fields."""

    begin: bytes
    after_text: bytes
    after_ids: bytes
    after_completion: bytes
    after_reasoning: bytes
    typecode: str
    kind: str
    fields: dict[str, Any]


class RepeatedMessages:
    """The streams of one codec."""

    def __init__(self) -> None:
        self._streams: dict[bytes, _RepeatedStream | None] = {}
        """By rid; None for one whose messages differ in more, so that each is read as a whole."""
        self._rid_at = 0
        self._shared: dict[bytes, bytes] = {}

    def read(self, frame: bytes) -> Message | None:
        """The message in a frame, if it is the next one of a stream that was learned."""
        rid = self._rid_of(frame)
        stream = self._streams.get(rid)
        if stream is None:
            return None
        message = _next(stream, frame)
        if message is None:
            self._streams[rid] = None
        return message

    def learn(self, frame: bytes, message: Message) -> None:
        """Remember what the next messages of a stream will share with this one, which was read as a whole."""
        name = _only(message.fields, "rids")
        text, ids = _only(message.fields, "output_strs"), _only(message.fields, "output_ids")
        if type(name) is not str or type(text) is not str or type(ids) is not array:
            return
        rid = name.encode("utf-8", "surrogatepass")
        if message.fields.get("finished_reasons") != [None]:
            self._streams.pop(rid, None)
            return
        if rid in self._streams or not _is_its_own(text):
            return
        if len(self._streams) >= _MOST:
            # Those that ended with no last output of theirs go by and by.
            del self._streams[next(iter(self._streams))]
            return
        at = frame.find(_item(rid), _BODY)
        if at >= 0:
            # The same in all messages: what comes before has no values of a request's.
            self._rid_at = at
            self._streams[rid] = self._stream(frame, message, ids)

    def _rid_of(self, frame: bytes) -> bytes:
        at = self._rid_at
        return frame[at + 2 : at + 2 + frame[at + 1]] if len(frame) > at + 2 else b""

    def _stream(self, frame: bytes, message: Message, ids: array[Any]) -> _RepeatedStream | None:
        if frame[:1] + frame[2:3] != _PROTO_FRAME:
            return None
        data = ids.tobytes()
        text_at = _value_at(frame, "output_strs", _BODY)
        ids_name = _value_at(frame, "output_ids", text_at)
        ids_at = frame.find(bytes((_BYTES, len(data) & 0xFF)) + data + _MEMOIZE, ids_name)
        completion_at = _value_at(frame, "completion_tokens", ids_at)
        reasoning_at = _value_at(frame, "reasoning_tokens", completion_at)
        if min(text_at, ids_name, ids_at, completion_at, reasoning_at) < 0:
            return None
        text_end, ids_end = (at + 2 + frame[at + 1] for at in (text_at, ids_at))
        completion_end, reasoning_end = (at + 1 + _INT_SIZES.get(frame[at], 0) for at in (completion_at, reasoning_at))
        stream = _RepeatedStream(
            begin=frame[_BODY:text_at],
            after_text=self._same(frame[text_end:ids_at]),
            after_ids=self._same(frame[ids_end:completion_at]),
            after_completion=self._same(frame[completion_end:reasoning_at]),
            after_reasoning=self._same(frame[reasoning_end:]),
            typecode=ids.typecode,
            kind=message.kind,
            fields=dict(message.fields),
        )
        # What is read by it from its own message must be that message.
        return stream if _next(stream, frame) == message else None

    def _same(self, part: bytes) -> bytes:
        # Most parts are those of other streams too.
        if len(self._shared) >= _PARTS_KEPT:
            self._shared.clear()
        return self._shared.setdefault(part, part)


def _next(stream: _RepeatedStream, frame: bytes) -> Message | None:
    begin, after_text, after_ids, after_completion, after_reasoning, typecode, kind, fields = stream
    try:
        if not frame.startswith(begin, _BODY):
            return None
        at = _BODY + len(begin)
        end = at + 2 + frame[at + 1]
        if frame[at] != _STRING or not frame.startswith(after_text, end):
            return None
        text = frame[at + 2 : end].decode("utf-8", "surrogatepass")
        at = end + len(after_text)
        end = at + 2 + frame[at + 1]
        if frame[at] != _BYTES or not frame.startswith(after_ids, end):
            return None
        ids = array(typecode, frame[at + 2 : end])
        at = end + len(after_ids)
        end = at + 1 + _INT_SIZES[frame[at]]
        completion = int.from_bytes(frame[at + 1 : end], "little", signed=frame[at] == 0x4A)
        if not frame.startswith(after_completion, end):
            return None
        at = end + len(after_completion)
        end = at + 1 + _INT_SIZES[frame[at]]
        if frame[end:] != after_reasoning:
            return None
        reasoning = int.from_bytes(frame[at + 1 : end], "little", signed=frame[at] == 0x4A)
    except (IndexError, KeyError, ValueError):
        return None
    return Message(
        kind,
        {
            **fields,
            "output_strs": [text],
            "output_ids": [ids],
            "completion_tokens": [completion],
            "reasoning_tokens": [reasoning],
        },
    )


def _only(fields: dict[str, Any], name: str) -> Any:
    """The value of a column with one row, else None."""
    column = fields.get(name)
    return column[0] if type(column) is list and len(column) == 1 else None


def _is_its_own(text: str) -> bool:
    """Not one of the strings that exist but once, which a later field could hold too, and a pickle then refers to."""
    return len(text) > 1 or text > "\xff"


def _item(text: bytes) -> bytes:
    return bytes((_STRING, len(text) & 0xFF)) + text + _MEMOIZE


def _value_at(frame: bytes, name: str, start: int) -> int:
    """Where a field's only value begins, -1 if it isn't so."""
    before = _item(name.encode()) + _LIST
    at = frame.find(before, start) if start >= 0 else -1
    return at + len(before) if at >= 0 else -1
