"""The FastAPI server of fastapi_before.py in shards: three lines stand where five stood.

Start it, and ask it:

    python fastapi_after.py MODEL 8000
    curl 127.0.0.1:8000/ask -H 'Content-Type: application/json' -d '{"text": "The capital of France is"}'
"""

import sys
from collections.abc import AsyncIterator
from typing import Any

import sglang_subgw
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

app = FastAPI()


class Question(BaseModel):
    """What a client asks."""

    text: str
    max_new_tokens: int = Field(default=32, gt=0)


def engine_of(request: Request) -> Any:
    """The engine that answers."""
    return request.state.engine


@app.post("/ask")
async def ask(question: Question, request: Request) -> dict[str, str]:
    """The whole answer."""
    sampling_params = {"temperature": 0, "max_new_tokens": question.max_new_tokens}
    out = await engine_of(request).async_generate(question.text, sampling_params)
    return {"answer": out["text"]}


@app.post("/ask/stream")
async def ask_stream(question: Question, request: Request) -> StreamingResponse:
    """The answer so far, a line each time that there is more of it."""
    sampling_params = {"temperature": 0, "max_new_tokens": question.max_new_tokens}
    outs = await engine_of(request).async_generate(question.text, sampling_params, stream=True)

    async def lines() -> AsyncIterator[str]:
        async for out in outs:
            yield out["text"] + "\n"

    return StreamingResponse(lines(), media_type="text/plain")


if __name__ == "__main__":
    sglang_subgw.run({"model_path": sys.argv[1]}, app=app, port=int(sys.argv[2]), shards=4)
