"""An sglang.Engine of this process, and what its gateways need of it: its contract, services, the news of its death."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ...contract import EngineContract
from ...coordination.bootstrap_rooms import ROOMS_NAME
from ...coordination.server import Coordinator
from ...kv_events.relay import KvEventRelay
from ...tokenization.local import LocalTokenizer
from ...tokenization.server import TokenizationService
from ..engine_loop import EngineLoop
from ..patches.any_loop import open_to_any_loop
from ..patches.stock_worker import StockWorker
from ..services.calls import CoordinatorCalls
from ..services.rpc import SchedulerRpc
from ..services.watcher import EngineProcesses, Watcher


class OwnedEngine:
    """The base of an engine that was launched here and of one that the caller launched and had wrapped."""

    def __init__(self, engine: Any, processes: EngineProcesses, runtime_dir: Path, *, engine_id: str) -> None:
        from ..facts.contract import contract_from_engine

        self.engine = engine
        """The sglang.Engine."""
        self._processes = processes
        self._watcher = Watcher(processes, engine.tokenizer_router)
        with ExitStack() as services:
            for name in ("tokenizer.json", ROOMS_NAME):
                services.callback(Path(runtime_dir, name).unlink, missing_ok=True)
            self.contract: EngineContract = contract_from_engine(engine, runtime_dir, engine_id=engine_id)
            self._take_watchdog(services)
            self.loop = EngineLoop(engine)
            """Where its tokenizer manager's coroutines run."""
            services.callback(self.loop.close)
            self.loop.start()
            services.callback(open_to_any_loop(engine, self.loop))
            self._serve_shards(services)
            services.callback(self._watcher.stop)
            self._watcher.start()
            self._watcher.on_death(self.loop.fail)
            self._watcher.on_death(self.rpc.end)
            self._services = services.pop_all()

    @property
    def child_pids(self) -> tuple[int, ...]:
        """Process ids of the schedulers and detokenizers."""
        return tuple(process.pid for process in self._processes.processes.values())

    def on_death(self, callback: Callable[[str], object]) -> None:
        """Call back with the reason, once and from a thread, when a part of the engine ends by itself."""
        self._watcher.on_death(callback)

    def router_alive(self) -> bool:
        """Whether requests still reach the scheduler."""
        return self._watcher.router_alive()

    def end_services(self) -> None:
        """End what this package added to the engine, which goes on. Safe to call twice."""
        self._services.close()

    def _serve_shards(self, services: ExitStack) -> None:
        """Start what the engine's side does for its shards."""
        model = self.contract.model
        if model.tokenization_socket:
            # For shards without the tokenizers library; the file is read when the first one asks.
            tokenization = TokenizationService(model.tokenization_socket, lambda: LocalTokenizer(model.tokenizer_file))
            services.callback(tokenization.close)
            tokenization.start()
        self.rpc = SchedulerRpc(self.engine)
        services.callback(self.rpc.close)
        self.rpc.start()
        self.calls = CoordinatorCalls(self.engine, self.loop)
        self.coordinator = Coordinator(
            self.contract.wire.coordinator, self.calls.state(), self.calls.calls, self.calls.streams
        )
        services.callback(self.coordinator.close)
        self.coordinator.start()
        if self.contract.kv_events.sources:
            kv_events = KvEventRelay(self.contract.kv_events)
            services.callback(kv_events.close)
            kv_events.start()
        stock = StockWorker(self.engine.tokenizer_manager, self.contract.wire.coordinator, self.loop)
        services.callback(stock.close)
        stock.start()

    def _take_watchdog(self, services: ExitStack) -> None:
        # SGLang's own answers a death by killing this process and all its children, before anybody has told a client.
        if (watchdog := self.engine.tokenizer_manager._subprocess_watchdog) is not None:
            watchdog.stop()
