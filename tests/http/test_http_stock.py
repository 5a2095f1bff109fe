"""Answers of the OpenAI routes equal those that SGLang's own serving code builds from the same engine outputs."""

from __future__ import annotations

import asyncio
import copy
import json
from types import SimpleNamespace
from typing import Any

import pytest
from http_fakes import STOP, CharTokenizer, FakeEngine, ask, emit, events_of

from sglang_subgw.shard.call import Call

pytestmark = [pytest.mark.sglang, pytest.mark.filterwarnings("ignore")]

BODIES: list[dict[str, Any]] = [
    {},
    {"n": 2},
    {"logprobs": True, "top_logprobs": 2},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "n": 2},
    {"return_hidden_states": True},
    {"return_hidden_states": "last", "return_cached_tokens_details": True, "return_spec_tokens_details": True},
    {"return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True},
]
WHOLE_ONLY: list[dict[str, Any]] = [
    {"return_meta_info": True, "return_token_ids": True},
    {"return_prompt_token_ids": True},
]
CHAT_ONLY = {"return_input_ids_in_sglext", "return_output_ids_in_sglext", "return_meta_info", "return_prompt_token_ids"}


async def rich_script(call: Call) -> None:
    details = {
        "output_hidden_states": [[0.5, 1.0], [2.0]],
        "cached_tokens_details": {"device": 3, "host": 0},
    }
    for chunk, finish in (("", None), ("Hé", None), ("", None), ("l\ufffdlo", STOP)):
        for sample in call.samples:
            emit(sample, chunk, finish, **details)
        for _ in range(5):
            await asyncio.sleep(0)


class StockManager:
    """What SGLang's handlers need of a TokenizerManager: it replays the outputs of our own samples."""

    def __init__(self) -> None:
        self.tokenizer = CharTokenizer()
        self.tokenizer.convert_ids_to_tokens = self.tokenizer.id_to_token  # type: ignore[attr-defined]
        self.tokenizer.get_vocab = lambda: dict.fromkeys(range(256))  # type: ignore[attr-defined]
        self.server_args = SimpleNamespace()
        self.served_model_name = "demo"

    async def generate_request(self, request: Any, raw: Any) -> Any:
        engine = FakeEngine(script=rich_script)
        prompt = request.text if request.text is not None else request.input_ids
        own = SimpleNamespace(
            text=prompt if isinstance(prompt, str) else None,
            input_ids=None if isinstance(prompt, str) else prompt,
            sampling_params=request.sampling_params,
            rid=None,
            stream=request.stream,
            return_logprob=request.return_logprob,
            top_logprobs_num=request.top_logprobs_num,
            return_text_in_logprobs=True,
            return_prompt_token_ids=request.return_prompt_token_ids,
        )
        call = await engine.submit(own)  # type: ignore[arg-type]
        if request.stream:
            async for sample in call:
                yield {**copy.deepcopy(sample.output()), "index": sample.index}
        else:
            await call.wait()
            yield [sample.output() for sample in call.samples]
        await engine.close()


@pytest.fixture(scope="module")
def stock() -> Any:
    pytest.importorskip("sglang")
    from sglang.srt.entrypoints.openai import protocol, serving_chat, serving_completions

    settings = SimpleNamespace(
        incremental_streaming_output=False,
        enable_cache_report=False,
        stream_response_default_include_usage=False,
        return_input_ids=False,
        return_output_ids=False,
    )
    patch = pytest.MonkeyPatch()
    patch.setattr(serving_chat, "get_serving", lambda: settings)
    patch.setattr(serving_completions, "get_serving", lambda: settings)
    chat = serving_chat.OpenAIServingChat.__new__(serving_chat.OpenAIServingChat)
    chat.reasoning_parser = chat.tool_call_parser = chat.chat_encoding_spec = chat._encoding_adapter = None
    completions = serving_completions.OpenAIServingCompletion.__new__(serving_completions.OpenAIServingCompletion)
    for handler in (chat, completions):
        handler.tokenizer_manager = StockManager()
        handler.template_manager = SimpleNamespace(completion_template_name=None)
        handler.allowed_custom_labels = None
    yield SimpleNamespace(protocol=protocol, chat=chat, completions=completions)
    patch.undo()


def stock_answer(stock: Any, path: str, body: dict[str, Any]) -> Any:
    from sglang.srt.managers.io_struct import GenerateReqInput

    is_chat = "chat" in path
    handler = stock.chat if is_chat else stock.completions

    async def run() -> Any:
        if is_chat:
            request = stock.protocol.ChatCompletionRequest(**copy.deepcopy(body))
            adapted = GenerateReqInput(
                input_ids=[1, 2, 3],
                sampling_params=request.to_sampling_params([], {}),
                return_logprob=request.logprobs,
                top_logprobs_num=request.top_logprobs or 0,
                stream=request.stream,
                return_prompt_token_ids=request.return_prompt_token_ids
                or request.return_token_ids
                or request.return_input_ids_in_sglext,
            )
            stream = handler._generate_chat_stream
        else:
            request = stock.protocol.CompletionRequest(**copy.deepcopy(body))
            adapted, _ = handler._convert_to_internal_request(request)
            stream = handler._generate_completion_stream
        if request.stream:
            lines = "".join([chunk async for chunk in stream(adapted, request, None)]).split("\n")
            datas = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
            return [data if data == "[DONE]" else json.loads(data) for data in datas]
        answer = await handler._handle_non_streaming_request(adapted, request, None)
        return json.loads(answer.model_dump_json(by_alias=True))

    return asyncio.run(run())


def timeless(value: Any) -> Any:
    """The value without what two runs can't share; the order of keys is kept."""
    if isinstance(value, list):
        return [timeless(item) for item in value]
    if isinstance(value, dict):
        volatile = ("created", "e2e_latency", "id", "response_sent_to_client_ts")
        return {key: timeless(item) for key, item in value.items() if key not in volatile}
    return value


def assert_equal(ours: Any, theirs: Any) -> None:
    assert timeless(ours) == timeless(theirs)
    assert json.dumps(timeless(ours)) == json.dumps(timeless(theirs)), "same values, another order"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("more", BODIES, ids=str)
def test_chat(stock: Any, more: dict[str, Any], stream: bool) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "input_ids": [1, 2, 3], "stream": stream}
    compare(stock, "/v1/chat/completions", body | more)


@pytest.mark.parametrize("more", WHOLE_ONLY, ids=str)
def test_chat_whole(stock: Any, more: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "input_ids": [1, 2, 3]}
    compare(stock, "/v1/chat/completions", body | more)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "more", [*BODIES, {"echo": True}, {"echo": True, "logprobs": True}, {"return_token_ids": True}], ids=str
)
@pytest.mark.parametrize("prompt", ["Hi", [1, 2, 3]], ids=str)
def test_completions(stock: Any, prompt: Any, more: dict[str, Any], stream: bool) -> None:
    if CHAT_ONLY & more.keys():
        pytest.skip("a field of chat completions")
    more = {key: 2 if key == "logprobs" else value for key, value in more.items() if key != "top_logprobs"}
    stock.completions.tokenizer_manager.tokenizer = StockManager().tokenizer
    compare(stock, "/v1/completions", {"model": "demo", "prompt": prompt, "stream": stream} | more)


def compare(stock: Any, path: str, body: dict[str, Any]) -> None:
    answer = ask(path, body, lambda: FakeEngine(script=rich_script))
    assert answer.status_code == 200, answer.text
    assert_equal(events_of(answer) if body.get("stream") else answer.json(), stock_answer(stock, path, body))
