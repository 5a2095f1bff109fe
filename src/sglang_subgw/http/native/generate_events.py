"""Events of a stream of /generate, each with everything so far: what was rendered once is not rendered again."""

from __future__ import annotations

from typing import Any, Final

from ...errors import EngineRejected
from ...worker.answers.sample import Sample
from ..core.jsonio import dumps
from ..core.sse import event

_TEXT: Final = b'data: {"text":"'
_IDS: Final = b'","output_ids":['
_TOKENS: Final = "completion_tokens"
_META: Final = b'],"meta_info":'


class GenerateEvents:
    """The events of one call."""

    def __init__(self, *, single: bool, incremental: bool) -> None:
        self._single = single
        self._incremental = incremental
        self._begun: dict[int, _SoFar] = {}

    def news(self, sample: Sample) -> bytes:
        """What a sample has new; raises its error, but for one of the engine's, which is an answer."""
        if sample.error is not None and not isinstance(sample.error, EngineRejected):
            raise sample.error
        if self._incremental:
            return self._event(sample, sample.take())
        if sample.finished or not sample.is_plain:
            return self._event(sample, sample.output())
        begun = self._begun.get(sample.index)
        if begun is None:
            begun = self._begun[sample.index] = _SoFar()
        begun.add(sample)
        end = b"}\n\n" if self._single else b',"index":%d}\n\n' % sample.index
        return b"".join((_TEXT, begun.text, _IDS, begun.ids, _META, begun.meta(sample), end))

    def _event(self, sample: Sample, answer: dict[str, Any]) -> bytes:
        return event(answer if self._single else {**answer, "index": sample.index})


class _SoFar:
    """A sample's text and token ids as JSON, without what encloses them, and its `meta_info`."""

    __slots__ = ("_after", "_before", "_count", "_others", "_version", "ids", "text")

    def __init__(self) -> None:
        self.text = bytearray()
        self.ids = bytearray()
        self._count = 0
        self._others: tuple[Any, ...] | None = None
        """What the two parts around the number of tokens were rendered for."""
        self._version = ""
        self._before = self._after = b""

    def meta(self, sample: Sample) -> bytes:
        """The sample's `meta_info`, of which mostly the number of tokens changes."""
        counts = sample.counts()
        if counts is None:
            return dumps(sample.meta())
        tokens, others = counts
        version = sample.weight_version
        if others != self._others or version != self._version:
            self._others, self._version = others, version
            self._render_around(sample.meta())
        return b"%b%d%b" % (self._before, tokens, self._after)

    def _render_around(self, meta: dict[str, Any]) -> None:
        keys = list(meta)
        place = keys.index(_TOKENS)
        before = {key: meta[key] for key in keys[:place]}
        after = {key: meta[key] for key in keys[place + 1 :]}
        self._before = b'%b,"%b":' % (dumps(before)[:-1], _TOKENS.encode())
        self._after = b"," + dumps(after)[1:]

    def add(self, sample: Sample) -> None:
        if delta := sample.read():
            self.text += dumps(delta)[1:-1]
        ids = sample.output_ids
        if len(ids) > self._count:
            if self._count:
                self.ids += b","
            self.ids += dumps(ids[self._count :])[1:-1]
            self._count = len(ids)
