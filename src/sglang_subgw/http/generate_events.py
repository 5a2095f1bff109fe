"""Events of a stream of /generate, each with everything so far: what was rendered once is not rendered again."""

from __future__ import annotations

from typing import Any, Final

from ..errors import EngineRejected
from ..shard.sample import Sample
from .jsonio import dumps
from .sse import event

_TEXT: Final = b'data: {"text":"'
_IDS: Final = b'","output_ids":['
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
        meta = dumps(sample.meta())
        return b"".join((_TEXT, begun.text, _IDS, begun.ids, _META, meta, end))

    def _event(self, sample: Sample, answer: dict[str, Any]) -> bytes:
        return event(answer if self._single else {**answer, "index": sample.index})


class _SoFar:
    """A sample's text and token ids as JSON, without what encloses them."""

    __slots__ = ("_count", "ids", "text")

    def __init__(self) -> None:
        self.text = bytearray()
        self.ids = bytearray()
        self._count = 0

    def add(self, sample: Sample) -> None:
        if delta := sample.read():
            self.text += dumps(delta)[1:-1]
        ids = sample.output_ids
        if len(ids) > self._count:
            if self._count:
                self.ids += b","
            self.ids += dumps(ids[self._count :])[1:-1]
            self._count = len(ids)
