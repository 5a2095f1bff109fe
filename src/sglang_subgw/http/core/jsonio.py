"""JSON bytes in and out: msgspec where it loads, else the standard library, with the same verdicts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

try:
    import msgspec
except ImportError:  # a free-threaded 3.13 has no msgspec
    msgspec = None  # type: ignore[assignment]


def _standard_loads(data: bytes) -> Any:
    """The value of a JSON text; raises ValueError, also for NaN, overflow and lone surrogates."""
    value = json.loads(data.decode(), parse_constant=_no_constant, parse_float=_finite)
    if b"\\u" in data:
        json.dumps(value, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("Number out of range")
    return value


def _standard_dumps(value: Any) -> bytes:
    """Compact UTF-8 JSON; a number that is not finite becomes null."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_named)
    except ValueError:
        text = json.dumps(_finite_only(value), ensure_ascii=False, separators=(",", ":"), default=_named)
    return text.encode("utf-8", "replace")


def _finite_only(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite_only(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite_only(item) for item in value]
    return value


def _named(value: Any) -> str:
    """A value of the engine's that has no JSON form and no reader here: the name of its kind."""
    return f"<{type(value).__name__}>"


def _msgspec_loads(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


loads: Callable[[bytes], Any] = _standard_loads if msgspec is None else _msgspec_loads
dumps: Callable[[Any], bytes] = _standard_dumps if msgspec is None else msgspec.json.Encoder(enc_hook=_named).encode
