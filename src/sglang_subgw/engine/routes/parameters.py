"""A JSON object becomes a method's keyword arguments, or the request object that the method takes."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Union

import msgspec
from starlette.requests import HTTPConnection

from ...errors import ConfigError, RequestRejected

_NOT_GIVEN: Final = {"http_worker_ipc": "it is internal to SGLang"}
"""Fields of SGLang's requests that only its processes set."""


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One key: the kind of value it takes (Any where nothing is known of it), and whether it must be there."""

    kind: Any = Any
    required: bool = False


class Parameters:
    """What a method takes, known once and for all when the gateway starts."""

    def __init__(self, method: Callable[..., Any]) -> None:
        """Raises ConfigError for a method that can't be called by keywords."""
        self._named, self._open = _parameters(method)
        self._request = ""
        """The one parameter, if it is a request object whose fields the keys are."""
        self._request_kinds: list[type] = []
        if len(self._named) == 1 and not self._open:
            (name, parameter), *_ = self._named.items()
            kinds = [kind for kind in _members(parameter.kind) if kind is not types.NoneType]
            if kinds and all(map(_is_record, kinds)):
                self._request, self._request_kinds = name, kinds

    @property
    def needed(self) -> bool:
        """Whether a call without any is wrong."""
        if self._request:
            return self._named[self._request].required and all(
                any(field.required for field in _fields(kind).values()) for kind in self._request_kinds
            )
        return any(parameter.required for parameter in self._named.values())

    @property
    def names(self) -> dict[str, bool]:
        """The keys that are known, and whether each is needed."""
        if self._request:
            return {name: f.required for name, f in _fields(self._request_kinds[0]).items() if name not in _NOT_GIVEN}
        return {name: parameter.required for name, parameter in self._named.items()}

    def read(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments; raises RequestRejected, which names the key, for one that is wrong or missing."""
        if not self._request:
            return _read(values, self._named, "this method", is_open=self._open)
        if not values and not self._named[self._request].required:
            return {}
        return {self._request: _record_of_first(self._request_kinds, values)}


def _parameters(method: Callable[..., Any]) -> tuple[dict[str, Parameter], bool]:
    name = getattr(method, "__name__", repr(method))
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} can't be called by keywords: nothing tells its parameters.") from None
    scope = getattr(inspect.unwrap(getattr(method, "__func__", method)), "__globals__", {})
    named, is_open = {}, False
    for parameter in signature.parameters.values():
        required = parameter.default is parameter.empty
        match parameter.kind:
            case parameter.VAR_KEYWORD:
                is_open = True
            case parameter.VAR_POSITIONAL:
                continue
            case parameter.POSITIONAL_ONLY:
                if required:
                    raise ConfigError(f"{name} can't be called by keywords: it takes {parameter.name} by position.")
            case _:
                kind = _resolved(parameter.annotation, scope) if parameter.annotation is not parameter.empty else Any
                if not (_is_connection(kind) and not required):
                    named[parameter.name] = Parameter(kind, required)
    return named, is_open


def _resolved(annotation: Any, scope: Mapping[str, Any]) -> Any:
    """The annotation itself where it is a text; Any where that names what only type checkers import."""

    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    try:
        return typing.get_type_hints(holder, globalns=dict(scope))["it"]
    except (NameError, TypeError, AttributeError, SyntaxError):
        return Any


def _is_connection(kind: Any) -> bool:
    return any(isinstance(member, type) and issubclass(member, HTTPConnection) for member in _members(kind))


def _members(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else (kind,)


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind))


@functools.cache
def _fields(record: type) -> dict[str, Parameter]:
    if issubclass(record, msgspec.Struct):
        return {field.name: Parameter(field.type, field.required) for field in msgspec.structs.fields(record)}
    scope = vars(sys.modules[record.__module__])
    return {
        field.name: Parameter(
            _resolved(field.type, scope),
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(record)  # type: ignore[arg-type]
        if field.init
    }


def _read(
    values: Mapping[str, Any], known: Mapping[str, Parameter], whose: str, *, is_open: bool = False
) -> dict[str, Any]:
    read = {}
    for name, value in values.items():
        if name in _NOT_GIVEN:
            raise RequestRejected(f"Field {name!r} can't be given: {_NOT_GIVEN[name]}.", param=name)
        if (parameter := known.get(name)) is not None:
            read[name] = _fitted(value, parameter.kind, name)
        elif is_open:
            read[name] = value
        else:
            shown = name if len(name) <= 100 else name[:100] + "…"
            givable = [other for other in known if other not in _NOT_GIVEN]
            close = difflib.get_close_matches(shown, givable, n=1)
            there = f"Did you mean {close[0]!r}?" if close else f"There is {', '.join(givable) or 'none'}."
            raise RequestRejected(f"Unknown field {shown!r} of {whose}.", hint=there, param=shown)
    for name, parameter in known.items():
        if parameter.required and name not in read:
            raise RequestRejected(f"Field {name!r} is required.", param=name)
    return read


def _fitted(value: Any, kind: Any, name: str) -> Any:
    """The value as its annotation wants it; raises RequestRejected."""
    members = [member for member in _members(kind) if member is not types.NoneType]
    if isinstance(value, dict) and (records := [member for member in members if _is_record(member)]):
        try:
            return _record_of_first(records, value)
        except RequestRejected:
            if records == members:
                raise
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as exc:
        raise RequestRejected(f"Field {name!r} is wrong: {exc}.", param=name) from None
    except TypeError:
        # The annotation says more than msgspec can check at once, or at all.
        if len(parts := _members(_bare(kind))) == 1:
            return value
    for part in parts:
        with contextlib.suppress(RequestRejected):
            return _fitted(value, part, name)
    raise RequestRejected(f"Field {name!r} must be {inspect.formatannotation(kind)}.", param=name)


def _bare(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind


def _record_of_first(kinds: list[type], values: Mapping[str, Any]) -> Any:
    refusal: RequestRejected | None = None
    for kind in kinds:
        try:
            return _record(kind, values)
        except RequestRejected as exc:
            refusal = refusal or exc
    assert refusal is not None
    raise refusal


def _record(kind: type, values: Mapping[str, Any]) -> Any:
    read = _read(values, _fields(kind), kind.__name__)
    try:
        return kind(**read)
    except (TypeError, ValueError, AssertionError) as exc:
        raise RequestRejected(f"{kind.__name__} can't be made of this: {exc or type(exc).__name__}.") from exc
