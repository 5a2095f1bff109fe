"""Bootstrap hosts against SGLang's own code: one that is let through is an address to its decode scheduler."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from sglang_subgw.worker.requests.routing import FAKE_HOST, _is_host

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]


@pytest.fixture(scope="session")
def srt() -> Any:
    """SGLang's module that these tests compare with."""
    pytest.importorskip("sglang")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sglang.srt.utils import network
    return network


@pytest.mark.parametrize("host", ["prefill_0.svc.cluster.local.", "10.0.0.1", "::1", "[fe80::2]", "a" * 63, FAKE_HOST])
def test_a_host_that_is_let_through_is_an_address_to_its_decode_scheduler(srt: Any, host: str) -> None:
    assert _is_host(host)
    written = srt.NetworkAddress(host, 8998).to_host_port_str()
    assert srt.NetworkAddress.parse(written) == srt.NetworkAddress(host, 8998)


def test_a_decode_scheduler_ends_by_a_host_that_is_missing(srt: Any) -> None:
    with pytest.raises(AttributeError):
        srt.NetworkAddress(None, 8998)
