"""What both codecs do: bytes for a message, a message for bytes, each checked against the engine's own schema."""

from __future__ import annotations

from typing import Any, Protocol

from ..contract import WireFacts
from ..errors import WireError
from .message import Message


class Codec(Protocol):
    """One engine's wire format."""

    def encode(self, kind: str, fields: dict[str, Any]) -> bytes:
        """A frame for the engine; raises WireError for a field that is unknown, missing or of a wrong kind."""

    def decode(self, frame: bytes) -> Message:
        """The message in a frame; raises WireError for one that can't be read."""


def codec_for(wire: WireFacts) -> Codec:
    """The codec that an engine speaks; raises WireError when it can't be had here."""
    if wire.codec == "pickle":
        from .pickle_codec import PickleCodec

        return PickleCodec(wire)
    if wire.codec == "msgpack":
        from .msgpack_codec import MsgpackCodec

        return MsgpackCodec(wire)
    raise WireError(f"The engine speaks {wire.codec!r}, a shard speaks pickle or msgpack.")
