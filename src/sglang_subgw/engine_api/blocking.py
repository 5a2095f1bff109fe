"""The blocking form of a coroutine method, made of it: `x = blocking(async_x)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from types import FunctionType
from typing import Any, Concatenate, Protocol, overload


class BlockingMethod[**P, T](Protocol):
    """A function, for type checkers that take no assigned one for a method."""

    @overload
    def __get__(self, instance: None, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__[S, **Q](self: BlockingMethod[Concatenate[S, Q], T], instance: S, owner: type) -> Callable[Q, T]: ...


def blocking[**P, T](coroutine: Callable[P, Coroutine[Any, Any, T]]) -> BlockingMethod[P, T]:
    """The method `x` of a family's `async_x`, with its parameters and result; it calls the object's own `async_x`."""
    name = coroutine.__name__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._blocking(getattr(self, name)(*args, **kwargs))

    short = name.removeprefix("async_")
    code = call.__code__.replace(co_name=short, co_qualname=coroutine.__qualname__.removesuffix(name) + short)
    # Annotations are text, which has its meaning among the globals of the coroutine.
    method = FunctionType(code, coroutine.__globals__, closure=call.__closure__)
    method.__doc__ = f"`{name}` for other threads than the loop's."
    method.__annotations__ = {"return": coroutine.__annotations__["return"]}
    return with_parameters_of(coroutine)(method)


def with_parameters_of[**P, R](
    coroutine: Callable[P, Coroutine[Any, Any, Any]],
) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """A decorator: whoever asks, a type checker or `inspect`, is told that the method takes what the coroutine takes.

    There is no `__wrapped__`: frameworks look through it, and would await the method's result.
    """

    def decorate(method: Callable[..., R]) -> Callable[P, R]:
        returns = method.__annotations__["return"]
        method.__annotations__ = {**coroutine.__annotations__, "return": returns}
        signature = inspect.signature(coroutine).replace(return_annotation=returns)
        method.__signature__ = signature  # type: ignore[attr-defined]
        return method

    return decorate
