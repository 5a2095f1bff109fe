"""Chat completions that can't be answered as asked."""

from __future__ import annotations

from support.http_fakes import FakeEngine, ask, contract


def test_reasoning_is_refused_unless_it_may_stay_in_the_content() -> None:
    body = {"messages": [{"role": "user", "content": "a"}]}

    def engine() -> FakeEngine:
        return FakeEngine(contract(reasoning_parser="qwen3"))

    answer = ask("/v1/chat/completions", body, engine)
    assert (answer.status_code, answer.json()["param"]) == (400, "separate_reasoning")
    assert ask("/v1/chat/completions", body | {"separate_reasoning": False}, engine).status_code == 200
