"""The command line: our options, SGLang's options, and refusals that name what is wrong."""

from __future__ import annotations

import pytest

from sglang_subgw.__main__ import main
from sglang_subgw.cli.parser import parse_attach, parse_serve
from sglang_subgw.config import GatewayConfig, Mode
from sglang_subgw.engine_routes import ENVIRONMENT
from sglang_subgw.errors import ConfigError


def test_defaults_are_the_configuration_objects():
    assert parse_serve([]).config == GatewayConfig()


def test_other_options_pass_through_in_order():
    command = parse_serve(["--model-path", "DIR", "--shards", "2", "--mode", "process", "--dtype", "float32"])
    assert command.config.shards == 2
    assert command.config.mode is Mode.PROCESS
    assert command.engine_argv[:4] == ("--model-path", "DIR", "--dtype", "float32")


def test_sglangs_name_for_the_number_of_shards():
    assert parse_serve(["--tokenizer-worker-num", "3"]).config.shards == 3
    assert parse_serve(["--tokenizer-worker-num", "3", "--shards", "3"]).config.shards == 3
    with pytest.raises(ConfigError, match="--shards 2 and --tokenizer-worker-num 3 differ"):
        parse_serve(["--tokenizer-worker-num", "3", "--shards", "2"])


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--shards", "0"], "shards must be from 1 to 256, not 0"),
        (["--shards", "two"], "'two'"),
        (["--port", "70000"], "port must be from 0 to 65535, not 70000"),
        (["--mode", "fork"], "'fork'"),
        (["--drain-timeout", "0"], "drain_timeout_seconds must be more than 0"),
    ],
)
def test_a_wrong_value_is_named(argv, named):
    with pytest.raises(ConfigError, match=named):
        parse_serve(argv)


def test_the_configuration_survives_its_json():
    config = parse_serve(["--shards", "7", "--mode", "process", "--images", "auto,-uvloop"]).config
    assert GatewayConfig.from_json(config.to_json()) == config


def test_an_engine_alone_takes_the_engine_s_options_and_refuses_a_gateway_s():
    command = parse_serve(["--engine-only", "--model-path", "DIR", "--drain-timeout", "5"])
    assert command.engine_only
    assert command.engine_argv == ("--model-path", "DIR", "--log-level", "error")
    for option in (["--shards", "2"], ["--mode", "process"], ["--port", "8000"], ["--tokenizer-worker-num", "2"]):
        with pytest.raises(ConfigError, match=f"{option[0]} says nothing to --engine-only"):
            parse_serve(["--engine-only", *option])


def test_attach_takes_a_target_and_a_gateway_s_options_and_none_of_sglang_s():
    command = parse_attach(["4711", "--shards", "2", "--mode", "process", "--port", "0"])
    assert (command.target, command.config.shards, command.config.mode) == ("4711", 2, Mode.PROCESS)
    with pytest.raises(ConfigError, match="--model-path"):
        parse_attach(["4711", "--model-path", "DIR"])
    with pytest.raises(ConfigError, match=r"PID\|NAME"):
        parse_attach([])


def test_an_unknown_command_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frob"]) == 2
    assert "'frob' is not a command. The commands are serve, attach, doctor, bench." in capsys.readouterr().err


def test_engine_routes_come_by_option_and_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "/c:tm, /d=flush_cache")
    for argv in ([], ["--engine-only"]):
        config = parse_serve([*argv, "--engine-route", "/a", "--engine-route=/b:tm", "--admin-listen", "9000"]).config
        assert config.engine_routes == ("/a", "/b:tm", "/c:tm", "/d=flush_cache")
        assert config.admin_listen == "9000"
    with pytest.raises(ConfigError, match="the path /d is taken"):
        parse_serve(["--engine-route", "/d"])
    monkeypatch.setenv(ENVIRONMENT, "/_submit")
    with pytest.raises(ConfigError, match="'/_submit': _submit is private"):
        parse_serve([])
    monkeypatch.delenv(ENVIRONMENT)
    with pytest.raises(ConfigError, match="admin_listen says nothing without engine_routes"):
        parse_serve(["--admin-listen", "9000"])


def test_attach_has_no_engine_to_route_to(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in (["--engine-route", "/flush_cache"], ["--admin-listen", "9000"]):
        with pytest.raises(ConfigError, match=f"{option[0]} says nothing to attach. The engine is in another process"):
            parse_attach(["4711", *option])
    monkeypatch.setenv(ENVIRONMENT, "/flush_cache")
    with pytest.raises(ConfigError, match=f"{ENVIRONMENT} says nothing to attach. The engine is in another process"):
        parse_attach(["4711"])
