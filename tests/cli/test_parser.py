"""The command line: our options, SGLang's options, and refusals that name what is wrong."""

from __future__ import annotations

import pytest

from sglang_subgw.cli.parser import parse_serve
from sglang_subgw.config import GatewayConfig, Mode
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
