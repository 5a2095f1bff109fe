"""Messages as this package sees them: a kind and its fields, plain values only."""

from __future__ import annotations

from typing import Any, NamedTuple


class Message(NamedTuple):
    """One of SGLang's structs that arrived, or one inside such a struct."""

    kind: str
    fields: dict[str, Any]


class Struct(NamedTuple):
    """One of SGLang's structs inside a message that is sent; fields left out have SGLang's defaults."""

    kind: str
    fields: dict[str, Any]


class EnumMember(NamedTuple):
    """A member of one of SGLang's enumerations, inside a message that is sent; it lives in that message's module."""

    kind: str
    value: int


class TimeStats:
    """The scheduler's times of one request, which come with each of its outputs: attributes, set without any code."""

    def __init__(self, *args: Any) -> None:
        """Of whatever it was made from, only the attributes count."""


class Opaque:
    """Stands for an object whose class a shard doesn't know and never imports; it does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.state: Any = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Opaque:
        """Any arguments will do: unpickling calls it in several ways."""
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __call__(self, *args: Any, **kwargs: Any) -> Opaque:
        return Opaque(*args)

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        """Take part of a pickled sequence's content."""

    def extend(self, values: Any) -> None:
        """Take part of a pickled sequence's content."""

    def add(self, value: Any) -> None:
        """Take part of a pickled set's content."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: not known to a shard>"
