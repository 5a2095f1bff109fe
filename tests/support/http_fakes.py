"""A shard's engine without an engine: scripted samples behind the real Call and Sample, and ways to drive the app."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from sglang_subgw.config import GatewayConfig
from sglang_subgw.contract import EngineContract, FeatureFacts, ModelFacts, WireFacts
from sglang_subgw.engine_api.info import ShardInfo
from sglang_subgw.errors import RequestError, RequestRejected
from sglang_subgw.http.app import create_app
from sglang_subgw.worker.answers.facts import AnswerFacts
from sglang_subgw.worker.answers.logprobs import Logprobs
from sglang_subgw.worker.answers.outputs import FlushCacheReqOutput
from sglang_subgw.worker.answers.sample import Sample
from sglang_subgw.worker.call import Call
from sglang_subgw.worker.requests.request import GenerateRequest

MODEL = "demo"
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STOP = {"type": "stop", "matched": 2}

type Script = Callable[[Call], Coroutine[Any, Any, None]]


def contract(template: str | None = CHATML, **features: Any) -> EngineContract:
    """A contract with only what the application reads."""
    return EngineContract(
        engine_id="0123456789ab",
        sglang_version="0.5.23",
        wire=WireFacts(worker_endpoint="", runtime_dir="", codec="pickle", schema={}),
        model=ModelFacts(
            model_path="/models/demo",
            served_model_name=MODEL,
            context_length=256,
            vocab_size=256,
            max_req_input_len=250,
            special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
            chat_template=template,
            default_sampling_params={"temperature": 0.6},
        ),
        features=FeatureFacts(**features),
        server_args={"load_format": "dummy"},
        scheduler_info={"status": "ready"},
    )


class CharTokenizer:
    """One id per character."""

    loaded = True
    vocab_size = 256

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(char) for char in text]

    async def encode_all(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, ids))

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        return [chr(token) for token in ids]

    def id_to_token(self, token: int) -> str | None:
        return chr(token) if 0x21 <= token < 0x7F else "Ġ"


def emit(sample: Sample, text: str, finish: dict[str, Any] | None = None, **columns: Any) -> None:
    """One output of the engine for a sample, one id per character."""
    ids = [ord(char) % 256 for char in text]
    tokens = len(sample.output_ids) + len(ids)
    rows = {
        "output_strs": text,
        "output_ids": ids,
        "finished_reasons": finish,
        "prompt_tokens": 5,
        "completion_tokens": tokens,
        "cached_tokens": 3,
        "reasoning_tokens": 0,
        "retraction_counts": 0,
        **columns,
    }
    if sample.logprobs is not None:
        rows |= {
            "output_token_logprobs_val": [-0.5] * len(ids),
            "output_token_logprobs_idx": ids,
            "output_top_logprobs_val": [[-0.5, -1.5]] * len(ids),
            "output_top_logprobs_idx": [[token, 65] for token in ids],
        }
    sample.on_output({name: [value] for name, value in rows.items()}, 0)
    sample.announce()


def saying(*chunks: str, finish: dict[str, Any] = STOP) -> Script:
    """A script: every sample says the chunks, one per step."""

    async def script(call: Call) -> None:
        for position, chunk in enumerate(chunks):
            last = position == len(chunks) - 1
            for sample in call.samples:
                if not sample.finished:
                    emit(sample, chunk, finish if last else None)
            for _ in range(5):
                await asyncio.sleep(0)

    return script


async def rich_script(call: Call) -> None:
    """A script with everything that an answer may show: empty deltas, half characters, details."""
    details = {
        "output_hidden_states": [[0.5, 1.0], [2.0]],
        "cached_tokens_details": {"device": 3, "host": 0},
    }
    for chunk, finish in (("", None), ("Hé", None), ("", None), ("l\ufffdlo", STOP)):
        for sample in call.samples:
            emit(sample, chunk, finish, **details)
        for _ in range(5):
            await asyncio.sleep(0)


async def silent(call: Call) -> None:
    """A script: nothing ever comes."""
    await asyncio.Event().wait()


class FakeEngine:
    """The part of ShardEngine that the application uses."""

    def __init__(self, facts: EngineContract | None = None, script: Script | None = None) -> None:
        self.contract = facts or contract()
        self.tokenizer = CharTokenizer()
        self.draining = False
        self.script = script or saying("Hel", "lo")
        self.requests: list[GenerateRequest] = []
        self.aborted: list[str] = []
        self.abort_calls: list[tuple[str, bool]] = []
        self.calls: list[Call] = []
        self.refusal: RequestError | None = None
        self.healthy = True
        self.flushed: list[float] = []
        self.flush_answer = FlushCacheReqOutput(success=True)
        self.submitted = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._counter = itertools.count(1)

    async def submit(self, request: GenerateRequest) -> Call:
        if self.refusal is not None:
            raise self.refusal
        self.requests.append(request)
        params = request.sampling_params or {}
        if isinstance(params, dict) and params.get("temperature", 1.0) < 0:
            raise RequestRejected("temperature must be non-negative.")
        prompts = request.text if request.text is not None else request.input_ids
        single = isinstance(prompts, str) or not prompts or isinstance(prompts[0], int)
        count = 1 if single else len(prompts)
        n = params.get("n", 1) if isinstance(params, dict) else 1
        samples = [
            self._sample(request, index, prompts if single else prompts[index // n]) for index in range(count * n)
        ]
        call = Call(samples, is_single=single and n == 1, stream=request.stream, abort=self._abort)
        self.calls.append(call)
        task = asyncio.create_task(self.script(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.submitted.set()
        return call

    def _sample(self, request: GenerateRequest, index: int, prompt: Any) -> Sample:
        rid = f"rid{next(self._counter):05}"
        logprobs = None
        if request.return_logprob:
            texts = self.tokenizer.token_texts if request.return_text_in_logprobs else None
            logprobs = Logprobs(top=request.top_logprobs_num or 0, texts=texts)
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt or ())
        return Sample(
            rid,
            request.rid if isinstance(request.rid, str) else rid,
            index,
            AnswerFacts(),
            stream=request.stream,
            logprobs=logprobs,
            prompt_token_ids=ids if request.return_prompt_token_ids else None,
        )

    def _abort(self, sample: Sample) -> None:
        self.aborted.append(sample.rid)

    def abort(self, rid: str = "", abort_all: bool = False) -> bool:
        self.abort_calls.append((rid, abort_all))
        return True

    async def async_flush_cache(self, timeout_s: float | None = None) -> FlushCacheReqOutput:
        self.flushed.append(timeout_s)
        return self.flush_answer

    async def async_get_internal_state(self) -> list[dict[str, Any]]:
        return [{"last_gen_throughput": 1.0}]

    async def health_generate(self, timeout: float) -> bool:
        return self.healthy

    def get_model_info(self) -> dict[str, Any]:
        return {
            "model_path": self.contract.model.model_path,
            "served_model_name": self.contract.model.served_model_name,
            "is_generation": True,
            "weight_version": "default",
            "load_format": self.contract.server_args.get("load_format"),
            "reasoning_parser": None,
            "tool_call_parser": None,
            "disaggregation_mode": "null",
        }

    def adapters(self) -> dict[str, str]:
        return {}

    def __getattr__(self, name: str) -> Any:
        # What no test here asks for: the routes that change the engine have tests over a whole gateway.
        if not name.startswith("async_"):
            raise AttributeError(name)
        return None

    def shards(self) -> list[dict[str, int | str]]:
        return [{"state": "ready"}] * 4

    async def close(self) -> None:
        """End what scripts still run."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


INFO = ShardInfo(
    engine_id="0123456789ab", gateway_id="ba9876543210", index=2, count=4, generation=1, mode="subinterp", pid=1
)


def app_of(engine: FakeEngine, **config: Any) -> Any:
    """The application over a fake engine."""
    return create_app(engine, INFO, GatewayConfig(**config))  # type: ignore[arg-type]


@asynccontextmanager
async def client_of(engine: FakeEngine, **config: Any) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client that talks to the application in this process."""
    transport = httpx.ASGITransport(app_of(engine, **config))
    async with httpx.AsyncClient(transport=transport, base_url="http://shard") as client:
        yield client
    await engine.close()


def ask(path: str, body: Any = None, engine: FakeEngine | None = None, method: str = "POST", **options: Any) -> Any:
    """One request to the application; the engine is made in the loop unless given by a function."""

    async def run() -> httpx.Response:
        the_engine = engine() if callable(engine) else engine or FakeEngine()
        async with client_of(the_engine, **options.pop("config", {})) as client:
            if body is not None:
                options["json"] = body
            return await client.request(method, path, **options)

    return asyncio.run(run())


def events_of(response: httpx.Response) -> list[Any]:
    """The JSON values of a stream's events, and "[DONE]"."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    values = []
    for line in response.text.split("\n"):
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            values.append(data if data == "[DONE]" else json.loads(data))
    return values


def get(path: str, **options: Any) -> httpx.Response:
    answer: httpx.Response = ask(path, method="GET", **options)
    return answer


def with_engine(method: str, path: str, **changes: Any) -> httpx.Response:
    def engine() -> FakeEngine:
        engine = FakeEngine()
        for name, value in changes.items():
            setattr(engine, name, value)
        return engine

    answer: httpx.Response = ask(path, engine=engine, method=method)
    return answer
