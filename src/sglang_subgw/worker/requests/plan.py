"""A client's request as single prompts: what every kind of request has in common when it is taken apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ...contract.rids import HEALTH_CHECK
from ...errors import RequestRejected
from ...wire.outgoing.token_ids import TokenIds
from ...wire.outgoing.values import is_int, is_str

MAX_ANSWERS: Final = 16384
"""In one request; each takes memory in the shard before the engine can say no."""

_INT_ONLY: Final = frozenset({int})


class AnyPrompt(Protocol):
    """What is asked of a prompt of any kind."""

    rid: str | None
    """The client's name for it, or None."""
    lora_path: str | None
    """The adapter's name."""


@dataclass(slots=True)
class RequestPlan[P: AnyPrompt]:
    """What a request asks for: prompts, samples of each, and the names that the client gave."""

    prompts: list[P]
    samples: int
    """Samples per prompt: answers are in the order prompt 0 sample 0, prompt 0 sample 1 …"""
    is_single: bool
    batch_name: str | None
    """The one rid that a client gave to a whole batch: good for aborting it all."""
    rooms: list[int] = field(default_factory=list)
    """The bootstrap rooms that no other request may use while this one runs."""

    @property
    def names(self) -> list[str]:
        """Everything that the request can be aborted by."""
        names = [prompt.rid for prompt in self.prompts if prompt.rid is not None]
        return names if self.batch_name is None else [*names, self.batch_name]


class Columns:
    """Takes a request's fields apart, with SGLang's rules and messages; every method may raise RequestRejected."""

    def __init__(self, request: Any, count: int, *, is_batch: bool, samples: int = 1) -> None:
        self._request = request
        self.count = count
        """Of the request's prompts."""
        self._is_batch = is_batch
        self._several = samples > 1
        if count * samples > MAX_ANSWERS:
            raise RequestRejected(
                f"One request may ask for {MAX_ANSWERS} answers, not for {count * samples} "
                f"({count} prompts, n={samples}): send several.",
                param="n",
            )
        # SGLang answers several samples of one prompt as a batch.
        self.is_single = not is_batch and samples == 1

    def split(
        self, name: str, check: Callable[[Any], bool], kind: str, default: Any = None, *, lists: bool = True
    ) -> list[Any]:
        """A field's value for each prompt; with `lists` it may be a list even where prompts have several samples."""
        value = getattr(self._request, name)
        if value is None:
            return [default] * self.count
        values = self.per_prompt(name, value, lists=lists)
        for item in values:
            if item is not None and not check(item):
                raise wrong(name, kind, item)
        return [default if item is None else item for item in values]

    def per_prompt(self, name: str, value: Any, *, lists: bool = True) -> list[Any]:
        """A single value as often as there are prompts, or a list of as many."""
        if not isinstance(value, list):
            return [value] * self.count
        if not self._is_batch:
            raise RequestRejected(f"{name} should not be a list for a single request.", param=name)
        if self._several and not lists:
            raise RequestRejected(f"Cannot use list {name} with parallel_sample_num > 1", param=name)
        if len(value) != self.count:
            raise RequestRejected(f"The length of {name} should be equal to the batch size.", param=name)
        return value

    def int_lists(self, name: str) -> list[list[int] | None]:
        """A list of integers for each prompt: a single prompt's own, or a list of them."""
        value = getattr(self._request, name)
        if value is None:
            return [None] * self.count
        rows = self.per_prompt(name, value) if self._is_batch else [value]
        for row in rows:
            if row is not None and not (isinstance(row, list) and row and all(map(is_int, row))):
                raise wrong(name, "a non-empty list of integers for each prompt", row)
        return rows

    def input_ids(self) -> list[list[int] | None]:
        """Each prompt's own ids."""
        ids: Any = self._request.input_ids
        if ids is None:
            return [None] * self.count
        if type(ids) is TokenIds:
            return [ids]
        rows = ids if self._is_batch else [ids]
        for row in rows:
            if not isinstance(row, list) or not _INT_ONLY.issuperset(map(type, row)):
                raise RequestRejected(
                    "input_ids must be a list of integers, or a list of such lists.", param="input_ids"
                )
            if self._is_batch and not row:
                raise RequestRejected("input_ids cannot be empty.", param="input_ids")
        return [list(row) for row in rows]

    def names(self) -> tuple[list[str | None], str | None]:
        """Each prompt's own name, and the name of the whole batch."""
        rid: Any = self._request.rid
        if rid is None:
            return [None] * self.count, None
        if isinstance(rid, str):
            _check_rid(rid)
            return ([rid], None) if self.is_single else ([f"{rid}_{i}" for i in range(self.count)], rid)
        if not isinstance(rid, list):
            raise RequestRejected("The rid should be a string or a list of strings.", param="rid")
        if self.is_single or len(rid) != self.count:
            raise RequestRejected(
                "The specified rids length mismatch with the batch_size for batch processing.", param="rid"
            )
        for name in rid:
            _check_rid(name)
        if len(set(rid)) != len(rid):
            twice = list(dict.fromkeys(name for name in rid if rid.count(name) > 1))
            raise RequestRejected(f"Duplicate request IDs detected within the request: {twice}", param="rid")
        return list(rid), None


def id_shape(ids: Any) -> tuple[bool, int]:
    """Whether token ids are those of a batch, and of how many prompts; raises RequestRejected for none."""
    if not isinstance(ids, list):
        raise wrong("input_ids", "a list of integers, or a list of such lists", ids)
    if not ids:
        raise RequestRejected("input_ids cannot be empty.", param="input_ids")
    return (True, len(ids)) if isinstance(ids[0], list) else (False, 1)


def text_shape(text: Any) -> tuple[bool, int]:
    """The same of texts."""
    if not isinstance(text, list):
        return False, 1
    if not text:
        raise RequestRejected("text cannot be empty.", param="text")
    return True, len(text)


def is_object(value: Any) -> bool:
    """Any dict: what is in it is checked where it is read."""
    return isinstance(value, dict)


def shown(value: Any) -> str:
    """A value as an error message shows it."""
    text = ascii(value)
    return f"{text[:60]}…" if len(text) > 60 else text


def wrong(name: str, kind: str, value: Any) -> RequestRejected:
    """The error for a value of the wrong kind."""
    return RequestRejected(f"{name} must be {kind}, got {shown(value)}.", param=name)


def _check_rid(rid: Any) -> None:
    if not is_str(rid):
        raise wrong("rid", "a string", rid)
    if not rid:
        raise RequestRejected("rid must not be empty.", param="rid")
    if rid.startswith(HEALTH_CHECK):
        raise RequestRejected(f"rid must not start with {HEALTH_CHECK}: that is SGLang's own.", param="rid")
