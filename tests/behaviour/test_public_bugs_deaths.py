"""The public report on workers whose deaths nobody gives a reason for: a test of each kind of death, named after it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from sglang_subgw.config import SHARD_MODES, Mode
from sglang_subgw.contract import Word
from sglang_subgw.doctor import gateways
from support.faults import APP, streams_on_each
from support.stack import Stack

DEATHS: dict[str, tuple[str, float, str]] = {
    "its last exception": ("receive", 0, "its connection to the engine failed: InjectedError: on a frame"),
    "a part of it that ended": ("heartbeat", 0, "its heartbeat failed: CancelledError: it was cancelled"),
    "an exit status": ("os_exit", 7, "exit status 7"),
    "a signal": ("kill", signal.SIGSEGV, "killed by SIGSEGV"),
}


_OF_PROCESSES = ("an exit status", "a signal")
"""In another mode they end the whole server."""


@pytest.mark.parametrize(
    ("mode", "death"),
    [(mode, death) for mode in SHARD_MODES for death in DEATHS if mode is Mode.PROCESS or death not in _OF_PROCESSES],
    indirect=["mode"],
)
def test_269_why_a_shard_died_is_in_the_log_and_in_what_is_told_of_it_later(
    make_stack: Callable[..., Stack], caplog: pytest.LogCaptureFixture, death: str
):
    fault, number, reason = DEATHS[death]
    stack = make_stack(step_seconds=0.01, config={"app": APP})
    assert [shard["last_failure"] for shard in stack.gateway.shards] == ["", ""]
    with streams_on_each(stack) as faulty:
        if fault == "kill":
            os.kill(stack.gateway.shards[1]["pid"], int(number))
        else:
            faulty.inject(1, fault, number)
        faulty.serves_again(1)
    assert f"Shard 1 ended and is started again: {reason}" in caplog.text
    with stack.client() as one:
        seen = one.get("/server_info").json()["sglang_subgw"]["shards"]
    assert stack.gateway.segment is not None
    told = gateways.describe(stack.gateway.segment.name).shards
    for failures in ([shard["last_failure"] for shard in seen], [shard.last_failure for shard in told]):
        assert failures == ["", reason]


def test_269_a_failure_of_any_text_is_kept_as_far_as_there_is_room(make_stack: Callable[..., Stack]):
    stack = make_stack(shards=1)
    assert stack.gateway.segment is not None
    slot = stack.gateway.segment.slots[0]
    counters = slot.snapshot()
    for text, kept in (("a\nb\0c", "a b c"), ("é" * 300, "é" * 128), ("x" + "é" * 300, "x" + "é" * 127), ("", "")):
        slot.note_failure(text)
        assert slot.snapshot() == counters | {"last_failure": kept, "heartbeat_ns": slot.get(Word.HEARTBEAT_NS)}
