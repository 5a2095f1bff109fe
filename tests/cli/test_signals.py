"""Report 39204: signals have one owner while it serves, and are given back as they were."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_subgw.cli import session
from sglang_subgw.cli.signals import HANDLED, Interrupted, Signals
from sglang_subgw.config import Mode
from sglang_subgw.engine.attach.published import PublishedEngine
from sglang_subgw.simulated import SimulatedEngine
from support.attached import CommandProcess
from support.client import client
from support.faults import until

OWNED = (*HANDLED, signal.SIGQUIT, signal.SIGCHLD, signal.SIGHUP)
_WITH_HANDLERS = """
import signal, sys, time
numbers = [signal.Signals[name] for name in sys.argv.pop(1).split(",")]
def handler(number, frame):
    print("the host's own handler:", signal.Signals(number).name, file=sys.stderr, flush=True)
for number in numbers:
    signal.signal(number, handler)
from sglang_subgw.__main__ import main
status = main(sys.argv[1:])
assert all(signal.getsignal(number) is handler for number in numbers), list(map(signal.getsignal, numbers))
print("all restored", file=sys.stderr)
sys.exit(status)
"""


@pytest.fixture
def published(runtime_dir: Path) -> Iterator[PublishedEngine]:
    with SimulatedEngine(runtime_dir) as engine, PublishedEngine(engine) as published:
        yield published


@pytest.fixture
def host_handlers() -> Iterator[dict[int, Any]]:
    """The host's own handlers of every signal there is a question about."""
    before = {number: signal.getsignal(number) for number in OWNED}
    try:
        for number in OWNED:
            signal.signal(number, lambda *_: None)
        yield {number: signal.getsignal(number) for number in OWNED}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_39204_signals_are_owned_while_it_serves_and_restored_after_it(host_handlers: dict[int, Any]):
    with Signals() as signals:
        taken = {number for number in OWNED if signal.getsignal(number) is not host_handlers[number]}
        assert taken == set(HANDLED)
        signals.queue_from_now()
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.wait(5) == "SIGTERM"
    assert {number: signal.getsignal(number) for number in OWNED} == host_handlers


def test_39204_a_signal_during_what_must_not_break_off_is_raised_after_it(host_handlers: dict[int, Any]):
    done = []
    with Signals() as signals, pytest.raises(Interrupted, match="SIGTERM"), signals.held(lambda: done.append("stop")):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        done.append("end")
        raise RuntimeError("its own, since it was stopped")
    assert done == ["stop", "stop", "end"]
    with Signals() as signals:
        with signals.held():
            done.clear()
        with pytest.raises(Interrupted, match="SIGINT"):
            os.kill(os.getpid(), signal.SIGINT)
    assert {number: signal.getsignal(number) for number in OWNED} == host_handlers


@pytest.mark.parametrize("end", [None, Interrupted(signal.SIGTERM), RuntimeError("broken"), SystemExit(3)], ids=repr)
def test_39204_a_session_restores_them_however_it_ends(host_handlers: dict[int, Any], end: BaseException | None):
    def command(signals: Signals) -> int:
        if end is not None:
            raise end
        return 0

    if isinstance(end, RuntimeError | SystemExit):
        with pytest.raises(type(end)):
            session.run("warning", command)
    else:
        assert session.run("warning", command) == (128 + signal.SIGTERM if end else 0)
    assert {number: signal.getsignal(number) for number in OWNED} == host_handlers


def test_39204_a_serving_command_leaves_sigquit_and_sigchld_to_its_host_and_gives_the_others_back(
    mode: Mode, published: PublishedEngine
):
    names = ",".join(number.name for number in OWNED)
    arguments = (names, "attach", published.name, "--port", "0", "--shards", "2", "--mode", mode)
    with CommandProcess(*arguments, program=_WITH_HANDLERS) as gateway:
        assert gateway.banner
        for name in ("SIGQUIT", "SIGCHLD"):
            gateway.send(signal.Signals[name])
            until(lambda name=name: f"the host's own handler: {name}" in gateway.log, what=f"the handler of {name}")
        with client(gateway.address) as one:
            assert one.get("/ping").status_code == 200
        gateway.send(signal.SIGTERM)
        assert gateway.wait() == 0, gateway.log
        assert gateway.log.rstrip().endswith("all restored")
        assert "handler: SIGTERM" not in gateway.log
