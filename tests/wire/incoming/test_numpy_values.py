"""numpy's values in the engine's pickles arrive as plain numbers and lists."""

from __future__ import annotations

import pickle

import pytest

from sglang_subgw.http.core.jsonio import dumps
from sglang_subgw.wire.incoming.unpickle import Reader

np = pytest.importorskip("numpy")


@pytest.mark.parametrize("kind", ["bool", "int8", "int32", "int64", "uint16", "float16", "float32", "float64", ">i4"])
@pytest.mark.parametrize("protocol", [4, 5])
def test_scalars_and_arrays(kind, protocol):
    scalar = np.array([1], dtype=kind)[0]
    array = np.array([[1, 0, 1], [0, 1, 1]], dtype=kind)
    read = Reader().loads(pickle.dumps({"s": scalar, "a": array, "empty": array[:0]}, protocol=protocol))
    assert read == {"s": scalar.item(), "a": array.tolist(), "empty": []}
    assert dumps(read)


def test_what_has_no_reader_is_named_in_json():
    read = Reader().loads(pickle.dumps({"x": np.random.PCG64(1)}, protocol=4))
    assert b"<" in dumps(read)
