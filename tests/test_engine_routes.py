"""Engine routes: what they may say, and what is said of one that doesn't fit."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_subgw.config import GatewayConfig
from sglang_subgw.engine_routes import EngineRoute, Owner, parse_routes, split_routes
from sglang_subgw.errors import ConfigError

segments = st.from_regex(r"[A-Za-z0-9._~-]+", fullmatch=True).filter(lambda text: text not in (".", ".."))
paths = st.lists(segments, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))
names = st.from_regex(r"[a-z][a-z0-9_]*", fullmatch=True)


@given(paths, names, st.sampled_from(Owner))
def test_a_full_route_is_read_and_written(path: str, method: str, owner: Owner) -> None:
    route = EngineRoute.parse(f"{path}={method}:{owner}")
    assert route == EngineRoute(path, method, owner)
    assert EngineRoute.parse(str(route)) == route
    assert EngineRoute.parse(f"{path}={method}") == EngineRoute(path, method, Owner.ENGINE)


@given(st.lists(names, min_size=1, max_size=3), st.sampled_from([None, *Owner]))
def test_without_a_method_it_is_the_path_s_last_part(parts: list[str], owner: Owner | None) -> None:
    path = "/" + "/".join(parts).replace("_", "-")
    route = EngineRoute.parse(path if owner is None else f"{path}:{owner}")
    assert route == EngineRoute(path, parts[-1], owner or Owner.ENGINE)


@given(st.text() | st.text("/=:_-.abtmengi \n", max_size=20))
def test_any_text_is_a_route_or_is_refused_by_name(text: str) -> None:
    try:
        route = EngineRoute.parse(text)
    except ConfigError:
        with pytest.raises(ConfigError, match=re.escape(f"Engine route {text!r}: ")):
            EngineRoute.parse(text)
        return
    assert route.method.isidentifier()
    assert not route.method.startswith("_")
    assert EngineRoute.parse(str(route)) == route


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' is not a path like '/flush_cache'. The form is <path>[=<method>][:engine|tm]."),
        ("flush_cache", "'flush_cache' is not a path"),
        ("/", "'/' is not a path"),
        ("/a/", "'/a/' is not a path"),
        ("//a", "'//a' is not a path"),
        ("/a b", "'/a b' is not a path"),
        ("/{name}", "'/{name}' is not a path"),
        ("/a/../b", "'/a/../b' is not a path"),
        ("/a?b", "'/a?b' is not a path"),
        ("/flush_cache\n", r"'/flush_cache\n' is not a path"),
        ("/a=", "'' is not a method's name"),
        ("/a=b.c", "'b.c' is not a method's name"),
        ("/a=b=c", "'b=c' is not a method's name"),
        ("/v1.0", "'v1.0' is not a method's name"),
        ("/a:scheduler", "'scheduler' is neither 'engine' nor 'tm'"),
        ("/a:", "'' is neither 'engine' nor 'tm'"),
        ("/a:tm:tm", "'tm:tm' is neither 'engine' nor 'tm'"),
        ("/a=_submit", "_submit is private"),
        ("/_submit", "_submit is private"),
        ("/x=__class__", "__class__ is private"),
    ],
)
def test_what_is_wrong_is_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"Engine route {text!r}: {problem}")):
        GatewayConfig(engine_routes=(text,))


def test_a_path_belongs_to_one_route() -> None:
    with pytest.raises(ConfigError, match="'/a=c:tm': the path /a is taken by '/a=b:engine'"):
        parse_routes(["/a=b", "/d", "/a=c:tm"])
    with pytest.raises(ConfigError, match="the path /a is taken"):
        parse_routes(["/a", "/a"])


def test_an_environment_variable_has_several() -> None:
    assert split_routes("/a=b:tm, /c\n\t/d,,/e ") == ["/a=b:tm", "/c", "/d", "/e"]
    assert split_routes(" ") == []


def test_the_configuration_keeps_them_over_an_interpreter_s_border() -> None:
    config = GatewayConfig(engine_routes=["/a", "/b:tm"], admin_listen="9000")
    assert config.engine_routes == ("/a", "/b:tm")
    assert GatewayConfig.from_json(config.to_json()) == config
    with pytest.raises(ConfigError, match="admin_listen says nothing without engine_routes"):
        GatewayConfig(admin_listen="9000")
