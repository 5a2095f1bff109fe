"""Run as a program of its own, since importing sglang leaves files open: SGLang's serving code over scripted answers.

Reads `[[path, body, model], …]` as JSON from standard input, writes the answers as JSON to the file that it is given.
"""

from __future__ import annotations

import asyncio
import json
import sys
from types import SimpleNamespace
from typing import Any

from support.stock.numbers_script import Script, scripted


def stock_answer(srt: Any, path: str, body: dict[str, Any], name: str) -> Any:
    """Status and body of SGLang's own answer."""
    script = Script.of(name)

    class Manager(srt.score.TokenizerManagerScoreMixin):  # type: ignore[misc,name-defined]
        server_args = SimpleNamespace()
        request_logger = SimpleNamespace(log_requests=False)
        served_model_name = "demo"
        model_path = "/models/demo"
        is_generation = script.is_generation
        tokenizer = SimpleNamespace(
            chat_template=script.template,
            vocab_size=256,
            unk_token_id=None,
            encode=lambda text, add_special_tokens=True: [ord(character) for character in text],
            convert_tokens_to_ids={"yes": 121, "no": 110}.get,
        )
        model_config = SimpleNamespace(
            is_generation=script.is_generation,
            model_path="/models/demo",
            hf_config=SimpleNamespace(architectures=["LlamaForSequenceClassification"]),
        )

        async def generate_request(self, request: Any, _: Any) -> Any:
            yield scripted(request)

    manager = Manager()
    kinds = {
        "/v1/embeddings": (srt.embedding.OpenAIServingEmbedding, srt.protocol.EmbeddingRequest),
        "/v1/rerank": (srt.rerank.OpenAIServingRerank, srt.protocol.V1RerankReqInput),
        "/v1/score": (srt.scoring.OpenAIServingScore, srt.protocol.ScoringRequest),
    }
    serving_class, request_class = kinds[path]
    serving = serving_class(manager, None) if path != "/v1/score" else serving_class(manager)

    async def run() -> Any:
        return await serving.handle_request(request_class(**body), None)

    from fastapi.encoders import jsonable_encoder

    answer = asyncio.run(run())
    if hasattr(answer, "status_code"):
        return answer.status_code, json.loads(answer.body)
    return 200, json.loads(json.dumps(jsonable_encoder(answer)))


def modules() -> Any:
    """SGLang's, with settings that need no engine."""
    from sglang.srt.entrypoints.openai import protocol, serving_base, serving_embedding, serving_rerank, serving_score
    from sglang.srt.managers import tokenizer_manager_score_mixin as score

    settings = {
        "get_exec": SimpleNamespace(features=SimpleNamespace(enable_mis=False)),
        "get_memory": SimpleNamespace(disable_radix_cache=True),
        "get_schedule": SimpleNamespace(chunked_prefill_size=-1),
        "get_serving": SimpleNamespace(allow_auto_truncate=False),
    }
    for name, value in settings.items():
        setattr(score, name, lambda value=value: value)
    serving_base.ServerArgs = type("ServerArgs", (), {})
    return SimpleNamespace(
        protocol=protocol, score=score, embedding=serving_embedding, rerank=serving_rerank, scoring=serving_score
    )


if __name__ == "__main__":
    srt = modules()
    answers = [stock_answer(srt, *case) for case in json.load(sys.stdin)]
    with open(sys.argv[1], "w") as out:
        json.dump(answers, out)
