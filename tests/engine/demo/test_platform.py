"""The CPU platform stands aside, and costs nothing, unless it was asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sglang_subgw.engine.demo import platform


def test_it_stands_aside_when_nobody_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(platform.ASKED_FOR, raising=False)
    monkeypatch.setattr(platform, "accelerator_present", lambda: pytest.fail("torch would have been imported"))
    assert platform.activate() is None


def test_it_stands_aside_for_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(platform.ASKED_FOR, "1")
    monkeypatch.setattr(platform, "accelerator_present", lambda: True)
    assert platform.activate() is None


def test_it_offers_a_class_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(platform.ASKED_FOR, "1")
    monkeypatch.setattr(platform, "accelerator_present", lambda: False)
    assert platform.activate() == "sglang_subgw.engine.demo.cpu:CpuPlatform"


def test_importing_the_entry_point_is_cheap() -> None:
    code = (
        "import sys, sglang_subgw.engine.demo.platform as p; p.activate();"
        "print([m for m in ('torch', 'sglang', 'transformers', 'msgspec', 'zmq') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
