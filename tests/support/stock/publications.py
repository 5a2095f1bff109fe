"""SGLang's own readers and writers of load snapshots and KV cache events."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_subgw.contract import LoadFacts
from sglang_subgw.engine.facts.publications import load_facts


def publishing_modules() -> Any:
    """SGLang's modules that tests compare with."""
    pytest.importorskip("sglang")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sglang.srt.disaggregation import kv_events
        from sglang.srt.entrypoints import v1_loads
        from sglang.srt.managers import load_snapshot
    return SimpleNamespace(loads=load_snapshot, v1_loads=v1_loads, kv=kv_events)


def published_load_facts(srt: Any) -> LoadFacts | None:
    """The layout as an engine would publish it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(srt.v1_loads, "_accelerator_name", lambda: None)
        patch.setattr(srt.v1_loads, "_num_accelerators_per_dp_rank", lambda: 1)
        return load_facts(SimpleNamespace(port_args=SimpleNamespace(instance_id="an instance")))
