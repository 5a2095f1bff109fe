"""The detokenizer's tokenizer: rows decode to what transformers' own batch_decode gives, or are left to it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_subgw.engine.demo.model import ensure_demo_model
from sglang_subgw.engine.patches import detokenizer
from sglang_subgw.engine.patches.detokenizer import RowDecoder, run_detokenizer, with_row_decoder

_FLAGS = [False, True]


@pytest.fixture(scope="module")
def tokenizers() -> tuple[Any, Any]:
    """The demo model's, as SGLang's detokenizer loads it, and the same with a RowDecoder."""
    transformers = pytest.importorskip("transformers")
    load = transformers.AutoTokenizer.from_pretrained
    stock, quick = (load(str(ensure_demo_model()), clean_up_tokenization_spaces=False) for _ in range(2))
    return stock, with_row_decoder(quick)


@pytest.mark.sglang
@pytest.mark.filterwarnings("default")
def test_rows_decode_as_transformers_decodes_them(tokenizers: tuple[Any, Any]) -> None:
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies
    stock, quick = tokenizers
    assert isinstance(quick.batch_decode, RowDecoder)
    ids = st.one_of(st.integers(0, len(stock) - 1), st.sampled_from(stock.all_special_ids))
    rows = st.lists(st.lists(ids, max_size=6), max_size=20)

    @hypothesis.settings(max_examples=300, deadline=None)
    @hypothesis.given(rows, st.sampled_from(_FLAGS), st.sampled_from(_FLAGS))
    def same(rows: list[list[int]], skip: bool, spaces: bool) -> None:
        flags = {"skip_special_tokens": skip, "spaces_between_special_tokens": spaces}
        assert quick.batch_decode(rows, **flags) == stock.batch_decode(rows, **flags)

    same()


@pytest.mark.sglang
@pytest.mark.filterwarnings("default")
def test_each_token_alone_and_again(tokenizers: tuple[Any, Any]) -> None:
    stock, quick = tokenizers
    rows = [[token] for token in range(len(stock))]
    for skip in _FLAGS:
        expected = stock.batch_decode(rows, skip_special_tokens=skip)
        assert quick.batch_decode(rows, skip_special_tokens=skip) == expected
        assert quick.batch_decode(rows, skip_special_tokens=skip) == expected


@pytest.mark.sglang
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("rows", [[1, 2, 3], ((1, 2), (3,)), 5])
def test_what_is_no_list_of_rows_is_left_to_transformers(tokenizers: tuple[Any, Any], rows: Any) -> None:
    stock, quick = tokenizers
    assert quick.batch_decode(rows) == stock.batch_decode(rows)


@pytest.mark.sglang
@pytest.mark.filterwarnings("default")
def test_a_tokenizer_of_another_kind_keeps_its_own() -> None:
    transformers = pytest.importorskip("transformers")
    path = str(ensure_demo_model())

    class Own(transformers.PreTrainedTokenizerFast):  # type: ignore[misc, name-defined]
        def _decode(self, *args: Any, **kwargs: Any) -> str:
            return super()._decode(*args, **kwargs).upper()

    cleaning = transformers.AutoTokenizer.from_pretrained(path, clean_up_tokenization_spaces=True)
    for tokenizer in (Own.from_pretrained(path), cleaning, object()):
        assert with_row_decoder(tokenizer) is tokenizer
        assert "batch_decode" not in getattr(tokenizer, "__dict__", {})


def test_sglangs_detokenizer_runs_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []
    manager = SimpleNamespace(get_tokenizer=lambda *args, **kwargs: (args, kwargs))
    monkeypatch.setitem(sys.modules, "sglang.srt.managers", SimpleNamespace(detokenizer_manager=manager))
    monkeypatch.setattr(detokenizer, "with_row_decoder", lambda tokenizer: ("quick", tokenizer))

    def run(*args: Any, **kwargs: Any) -> None:
        loaded.extend((args, kwargs, manager.get_tokenizer("model", revision="main")))

    run_detokenizer(run, "arguments", ports=1)
    assert loaded == [("arguments",), {"ports": 1}, ("quick", (("model",), {"revision": "main"}))]
