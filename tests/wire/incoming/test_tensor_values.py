"""torch's tensors, pickled and packed by SGLang's own code, read without torch."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from sglang_subgw.errors import WireError
from sglang_subgw.simulated.wire.tensors import Tensor
from sglang_subgw.wire.incoming.tensor_values import tensor
from sglang_subgw.wire.incoming.unpickle import Reader

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


@pytest.fixture(scope="session")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.sglang
@pytest.mark.parametrize("dtype", DTYPES)
def test_pickled_tensors_are_nested_lists(torch: Any, dtype: str) -> None:
    whole = torch.tensor([[0, 1, 2], [3, 4.5, -6]]).to(getattr(torch, dtype))
    views = (whole, whole[1], whole.T, whole[:, 1:], whole[0, 0], whole[0:0], whole[1].expand(2, 3))
    for view in views:
        for protocol in (4, 5):
            assert Reader().loads(pickle.dumps(view, protocol)) == view.tolist()


@pytest.mark.sglang
@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_tensors_are_nested_lists(torch: Any, dtype: str) -> None:
    whole = torch.tensor([[0, 1, 2], [3, 4.5, -6]]).to(getattr(torch, dtype))
    data = whole.contiguous().view(torch.uint8).numpy().tobytes()
    assert tensor(list(whole.shape), dtype, data) == whole.tolist()


@pytest.mark.sglang
def test_the_simulated_engine_s_tensors_are_torch_s(torch: Any) -> None:
    rows = [[0.5, -1.25, 3.0], [1.0, 2.0, 4.0]]
    ours = Reader().loads(_as_torch(pickle.dumps(Tensor(rows))))
    assert ours == rows
    assert pickle.loads(_as_torch(pickle.dumps(Tensor(rows)))).tolist() == rows


def _as_torch(frame: bytes) -> bytes:
    from sglang_subgw.simulated.wire.structs import as_sglang

    return as_sglang(frame)


def test_what_is_no_tensor_is_an_error() -> None:
    with pytest.raises(ValueError, match="complex64"):
        tensor([1], "complex64", bytes(8))
    broken = b"\x80\x02ctorch.storage\n_load_from_bytes\nU\x03abc\x85R."
    with pytest.raises(WireError):
        Reader().loads(broken)
