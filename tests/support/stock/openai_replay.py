"""Run as a program of its own, since importing sglang leaves files open: SGLang's serving code over scripted outputs.

Reads `[[path, body], …]` as JSON from standard input, writes the answers as JSON to the file that it is given.
"""

from __future__ import annotations

import asyncio
import copy
import json
import sys
from types import SimpleNamespace
from typing import Any

from support.http_fakes import CharTokenizer, FakeEngine, rich_script


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


def serving() -> Any:
    """SGLang's two handlers, without the engine that their constructors want."""
    from sglang.srt.entrypoints.openai import protocol, serving_chat, serving_completions

    settings = SimpleNamespace(
        incremental_streaming_output=False,
        enable_cache_report=False,
        stream_response_default_include_usage=False,
        return_input_ids=False,
        return_output_ids=False,
    )
    serving_chat.get_serving = lambda: settings
    serving_completions.get_serving = lambda: settings
    chat = serving_chat.OpenAIServingChat.__new__(serving_chat.OpenAIServingChat)
    chat.reasoning_parser = chat.tool_call_parser = chat.chat_encoding_spec = chat._encoding_adapter = None
    completions = serving_completions.OpenAIServingCompletion.__new__(serving_completions.OpenAIServingCompletion)
    for handler in (chat, completions):
        handler.tokenizer_manager = StockManager()
        handler.template_manager = SimpleNamespace(completion_template_name=None)
        handler.allowed_custom_labels = None
    return SimpleNamespace(protocol=protocol, chat=chat, completions=completions)


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


if __name__ == "__main__":
    stock = serving()
    answers = [stock_answer(stock, path, body) for path, body in json.load(sys.stdin)]
    with open(sys.argv[1], "w") as out:
        json.dump(answers, out)
