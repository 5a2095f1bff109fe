"""SGLang's detokenizer, of whose time per token a quarter goes into what transformers does around each row it decodes.

All streams of an engine pass through it, so it ends what shards can pass on. Its tokenizer gets another `batch_decode`
here, where that is sure to give the same texts; everything else is SGLang's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_TEXTS_KEPT: Final = 65536


def run_detokenizer(run: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """In the detokenizer's process: SGLang's own function for it, with a tokenizer that decodes rows faster."""
    from sglang.srt.managers import detokenizer_manager

    get_tokenizer = detokenizer_manager.get_tokenizer

    def get(*args: Any, **kwargs: Any) -> Any:
        return with_row_decoder(get_tokenizer(*args, **kwargs))

    detokenizer_manager.get_tokenizer = get
    run(*args, **kwargs)


def with_row_decoder(tokenizer: Any) -> Any:
    """The same tokenizer, which decodes rows by a RowDecoder if its class decodes as transformers' own does."""
    if _decodes_plainly(tokenizer):
        tokenizer.batch_decode = RowDecoder(tokenizer)
    return tokenizer


class RowDecoder:
    """`batch_decode` of a tokenizer of transformers that only passes each row on to the tokenizers library."""

    def __init__(self, tokenizer: Any) -> None:
        self._stock: Callable[..., list[str]] = tokenizer.batch_decode
        self._decode: Callable[..., str] = tokenizer._tokenizer.decode
        self._texts: dict[bool, dict[int, str]] = {False: {}, True: {}}
        """The texts of single tokens, with and without the special ones: in most steps a stream's last one is asked for
        again, to tell what its new one adds."""

    def __call__(
        self,
        sequences: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **others: Any,
    ) -> list[str]:
        """Each row's text; raises what the tokenizers library raises."""
        rows = type(sequences) is list and sequences and all(type(row) is list for row in sequences)
        if clean_up_tokenization_spaces or not rows:
            return self._stock(
                sequences,
                skip_special_tokens=skip_special_tokens,
                clean_up_tokenization_spaces=clean_up_tokenization_spaces,
                **others,
            )
        decode, known = self._decode, self._texts[bool(skip_special_tokens)]
        texts = []
        for row in sequences:
            if len(row) != 1:
                texts.append(decode(row, skip_special_tokens=skip_special_tokens))
                continue
            text = known.get(row[0])
            if text is None:
                text = decode(row, skip_special_tokens=skip_special_tokens)
                if len(known) < _TEXTS_KEPT:
                    known[row[0]] = text
            texts.append(text)
        return texts


def _decodes_plainly(tokenizer: Any) -> bool:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    cls = type(tokenizer)
    return (
        isinstance(tokenizer, PreTrainedTokenizerFast)
        and cls._decode is PreTrainedTokenizerFast._decode
        and cls.decode is PreTrainedTokenizerBase.decode
        and cls.batch_decode is PreTrainedTokenizerBase.batch_decode
        and not {"_decode", "decode", "batch_decode"} & vars(tokenizer).keys()
        and not tokenizer.clean_up_tokenization_spaces
    )
