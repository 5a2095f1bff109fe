"""collective_rpc from several threads at once, and of a scheduler that is gone."""

from __future__ import annotations

import sys
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sglang_subgw.engine.services.rpc import SchedulerRpc
from sglang_subgw.errors import EngineUnavailable


class Socket:
    """Answers a request with its own method's name, once it is asked for an answer; one at a time."""

    def __init__(self) -> None:
        self.pending: list[Any] = []
        self.answers = True

    def send(self, request: Any) -> None:
        assert not self.pending
        self.pending.append(request)

    def poll(self, timeout: int, flags: int) -> int:
        return flags if self.answers else 0

    def receive(self) -> Any:
        request = self.pending.pop()
        return types.SimpleNamespace(success=request.method != "fail", message=f"{request.method} {request.parameters}")


class Engine:
    def __init__(self) -> None:
        self.send_to_rpc = Socket()

    def collective_rpc(self, method: str, **kwargs: Any) -> None:
        """SGLang's own."""

    def save_sharded_model(self, **kwargs: Any) -> None:
        self.collective_rpc("save_sharded_model", **kwargs)


@pytest.fixture(autouse=True)
def io_struct(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("sglang.srt.managers.io_struct")
    module.RpcReqInput = types.SimpleNamespace
    module.sock_send = Socket.send
    module.sock_recv = Socket.receive
    monkeypatch.setitem(sys.modules, "sglang.srt.managers.io_struct", module)
    for name in ("sglang", "sglang.srt", "sglang.srt.managers"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))


def test_several_at_once_get_their_own_answers() -> None:
    engine = Engine()
    rpc = SchedulerRpc(engine)
    rpc.start()
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(engine.save_sharded_model, path=str(i)) for i in range(100)]
        assert [call.result(10) for call in calls] == [None] * 100
    with pytest.raises(AssertionError, match=r"^fail \{'a': 1\}$"):
        engine.collective_rpc("fail", a=1)
    rpc.close()
    rpc.close()
    assert vars(engine) == {"send_to_rpc": engine.send_to_rpc}


def test_a_scheduler_that_is_gone_is_not_waited_for() -> None:
    engine = Engine()
    rpc = SchedulerRpc(engine)
    rpc.start()
    engine.send_to_rpc.answers = False
    rpc.end("the scheduler was killed by signal 9")
    with pytest.raises(EngineUnavailable, match="did not answer collective_rpc: the scheduler was killed by signal 9"):
        engine.collective_rpc("method")
