"""`bench` from its command line to its page, in seconds, without sglang."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from sglang_subgw.__main__ import main
from sglang_subgw.bench.scenarios import SCENARIOS
from sglang_subgw.bench.targets.servers import Stock
from sglang_subgw.cli.bench import bench
from sglang_subgw.config import Mode
from sglang_subgw.errors import ConfigError
from support.stack import Stack

# Each starts several processes, which takes a loaded machine its time.
pytestmark = pytest.mark.timeout(180)

TINY = ("--streams", "4", "--rate", "100", "--seconds", "0.3", "--warm", "0.1")
VOID = {"br", "meta", "line", "rect", "path", "circle"}


class Balanced(HTMLParser):
    """Collects open elements, and everything that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href") and (value or "")[:1] != "#"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def test_a_gateway_in_each_mode_is_measured_and_written_down(
    mode: Mode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--engine", "wire", "--modes", mode, "--shards", "2", "--rounds", "2", "--out", str(tmp_path))
    assert bench(["chat-64", *TINY, *options]) == 0
    printed = capsys.readouterr().out
    assert f"{mode}-2" in printed
    assert "floor-send" in printed
    data = json.loads((tmp_path / "results.json").read_text())
    (case,) = data["scenarios"][0]["cases"]
    gateway = next(variant for variant in case["variants"] if variant["name"] == f"{mode}-2")
    summary = gateway["summary"]
    assert summary["errors"]["high"] == 0
    assert summary["events/s"]["low"] > 0
    assert summary["shards us/event"]["low"] > 0
    assert summary["main us/event"]["low"] >= 0
    assert summary["balance"]["median"] == pytest.approx(1, abs=0.2)
    assert gateway["times"]["gap"]
    page = (tmp_path / "index.html").read_text()
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert parser.fetched == []
    assert f"{mode}-2" in page


@pytest.mark.parametrize("name", ["short", "reconnect", "generate-128", "mixed"])
def test_scenarios_run_without_an_error(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--engine", "wire", "--modes", "process", "--shards", "1", "--rounds", "1", "--no-floor")
    assert bench([name, *TINY, *options, "--prompt-tokens", "16", "--max-tokens", "8"]) == 0
    printed = capsys.readouterr().out
    assert "process-1" in printed
    assert "had errors" not in printed


def test_a_saturated_engine_keeps_to_what_the_shards_take_in(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--modes", "process", "--shards", "1", "--rounds", "1", "--seconds", "0.3", "--warm", "0.1")
    assert bench(["saturate", "--streams", "8", *options]) == 0
    printed = capsys.readouterr().out
    assert "tokens/s" in printed
    assert "had errors" not in printed


def test_a_running_server_is_measured_by_its_url(
    make_stack: Callable[..., Stack], capsys: pytest.CaptureFixture[str]
) -> None:
    stack = make_stack(step_seconds=0.01)
    url = stack.gateway.urls[0]
    assert bench(["chat-64", "--url", url, *TINY, "--rounds", "1", "--no-floor"]) == 0
    printed = capsys.readouterr().out
    assert url in printed
    assert "had errors" not in printed
    stack.wait_idle()
    stack.check()


def test_the_list_says_what_each_scenario_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(SCENARIOS)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "No scenario"),
        (["chat-64", "--modes", "subinterp,fork"], "fork"),
        (["chat-64", "--shards", "0"], "'0'"),
        (["chat-64", "--against", "dynamo"], "dynamo"),
        (["chat-64", "--url", "127.0.0.1:8000"], "no address"),
        (["chat-64", "--colour"], "--colour"),
        (["chat-64", "--sglang-python", sys.executable], "--sglang-python"),
        (["many-streams", "--engine", "wire"], "many-streams has events of several tokens"),
        (["many-streams", "--format", "chat"], "tokens_per_event is for the format generate, not chat"),
        (["chat-64", "--against", "sglang", "--sglang-python", "/nowhere/python"], "/nowhere/python can't be asked"),
        (["chat-64", "--against", "sglang", "--sglang-python", "/bin/false"], "/bin/false has no SGLang"),
    ],
)
def test_a_wrong_option_is_refused_by_name(argv: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        bench(argv)


@pytest.mark.sglang
@pytest.mark.skipif(find_spec("sglang") is None, reason="sglang is not installed")
def test_the_server_of_another_pythons_sglang_has_its_version_in_its_name(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o700)
    stock = Stock({}, workers=2, rust=False, log=tmp_path / "log", python=str(other))
    assert stock.name == f"sglang{metadata.version('sglang')}-2"
    assert Stock({}, workers=2, rust=True, log=tmp_path / "log").name == "sglang-rust-2"


@pytest.mark.sglang
@pytest.mark.skipif(find_spec("sglang") is None, reason="sglang is not installed")
@pytest.mark.timeout(600)
def test_sglangs_own_server_is_measured_beside_a_gateway(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--modes", "subinterp", "--shards", "1", "--against", "sglang", "--rounds", "1", "--out", str(tmp_path))
    assert bench(["chat-64", *TINY, *options]) == 0
    (case,) = json.loads((tmp_path / "results.json").read_text())["scenarios"][0]["cases"]
    summaries = {variant["name"]: variant["summary"] for variant in case["variants"]}
    assert summaries.keys() == {"subinterp-1", "sglang-1", "floor-send", "floor-uvloop"}
    for name in ("subinterp-1", "sglang-1"):
        parts = {metric.removesuffix(" us/event") for metric in summaries[name] if metric.endswith(" us/event")}
        assert {"shards", "detokenizer", "scheduler", "load"} <= parts
        assert summaries[name]["errors"]["high"] == 0
        assert summaries[name]["events/s"]["low"] > 0
