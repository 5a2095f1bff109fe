"""Engine routes beside a gateway in each mode: they come before its shards, and go with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("msgspec")

from sglang_subgw.config import GatewayConfig, Mode
from sglang_subgw.engine.engine_loop import EngineLoop
from sglang_subgw.engine.routes.address import AdminSocket
from sglang_subgw.errors import ConfigError
from sglang_subgw.gateway import ShardGateway
from sglang_subgw.simulated import SimulatedEngine
from support.admin_fakes import Engine, client_of
from support.client import client
from support.stack import generate_body


class OwnedSimulation(SimulatedEngine):
    """A simulated engine that has, for engine routes, an Engine in this process."""

    def __init__(self, runtime_dir: Path) -> None:
        super().__init__(runtime_dir)
        self.engine = Engine(asyncio.new_event_loop())
        self.loop = EngineLoop(self.engine)


@pytest.fixture
def engine(runtime_dir: Path) -> Iterator[OwnedSimulation]:
    with OwnedSimulation(runtime_dir) as engine:
        engine.loop.start()
        yield engine
        engine.loop.close()
        engine.loop.loop.close()


def config_of(mode: Mode, *routes: str, listen: str = "") -> GatewayConfig:
    return GatewayConfig(port=0, mode=mode, shards=1, log_level="warning", engine_routes=routes, admin_listen=listen)


def test_they_are_there_while_it_serves_and_are_its_own(engine: OwnedSimulation, mode: Mode) -> None:
    with ShardGateway(engine, config_of(mode, "/flush_cache", "/pause_generation:tm")) as gateway:
        with client_of(gateway.admin_url) as admin:
            assert admin.post("/flush_cache").json()["success"]
            assert admin.post("/pause_generation", json={"mode": "in_place"}).status_code == 200
        with client(gateway.address) as public:
            assert public.post("/generate", json=generate_body("abc", 3)).status_code == 200
            # What the shards serve at this path is SGLang's own route.
            assert public.get("/flush_cache").text.startswith("Cache flushed.")
        url = gateway.admin_url
        with ShardGateway(engine, config_of(mode, "/flush_cache")) as other, client_of(other.admin_url) as admin:
            assert other.admin_url != url
            assert admin.post("/flush_cache").json()["success"]
    assert gateway.admin_url == ""
    assert not Path(url.removeprefix("unix:")).exists()


def test_one_that_is_not_there_fails_the_start_before_any_shard(engine: OwnedSimulation, mode: Mode) -> None:
    sock = AdminSocket.bind("0")
    gateway = ShardGateway(engine, config_of(mode, "/flush_cach", listen="0"), admin_socket=sock)
    with pytest.raises(ConfigError, match="flush_cach of sglang.Engine is no such method. Did you mean flush_cache?"):
        gateway.start()
    assert gateway.shards == []
    assert sock.sock.fileno() == -1


def test_an_engine_of_another_process_has_none(runtime_dir: Path, mode: Mode) -> None:
    with SimulatedEngine(runtime_dir) as simulated:
        gateway = ShardGateway(simulated, config_of(mode, "/flush_cache"))
        with pytest.raises(ConfigError, match="need the engine in their own process, and it is in another"):
            gateway.start()
