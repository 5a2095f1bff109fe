"""A worker as plain as can be, on the engine's own codec: what the simulated engine is tested with."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any, Self

import zmq

from sglang_subgw.contract import EngineContract
from sglang_subgw.simulated.wire.frames import frame_codec
from sglang_subgw.simulated.wire.schema import structs
from sglang_subgw.simulated.wire.structs import StandIn, make

_REQUEST_FIELDS = structs()["TokenizedGenerateReqInput"].types.keys()


class PlainWorker:
    """Sends messages, and collects what comes back."""

    def __init__(self, contract: EngineContract, name: str = "worker") -> None:
        self.endpoint = f"ipc://{contract.wire.runtime_dir}/{name}"
        self.codec = frame_codec(contract.wire.codec)
        self._context = zmq.Context()
        self._pull = self._context.socket(zmq.PULL)
        self._pull.bind(self.endpoint)
        self._push = self._context.socket(zmq.PUSH)
        self._push.connect(contract.wire.worker_endpoint)

    def send(self, kind: str, /, **fields: Any) -> None:
        """Send one message, with this worker's address unless another is given."""
        self.send_frame(self.codec.encode(make(kind, **fields)))

    def ask(self, kind: str, /, **fields: Any) -> StandIn:
        """Send a control message and receive the next message."""
        self.send(kind, http_worker_ipc=self.endpoint, **fields)
        return self.receive()

    def send_frame(self, frame: bytes) -> None:
        """Send any bytes."""
        self._push.send(frame)

    def receive_frame(self) -> bytes:
        """The next frame."""
        assert self._pull.poll(5000), "nothing came from the engine"
        return self._pull.recv()

    def receive(self) -> StandIn:
        """The next message."""
        return self.codec.decode(self.receive_frame())

    def generate(self, rid: str, prompt: str | list[int], **fields: Any) -> None:
        """Send one request; keywords that aren't its fields are sampling parameters."""
        self.send_frame(self.codec.encode(self.request(rid, prompt, **fields)))

    def request(self, rid: str, prompt: str | list[int], **fields: Any) -> StandIn:
        """A well-formed request."""
        ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
        request: dict[str, Any] = {
            "rid": rid,
            "http_worker_ipc": self.endpoint,
            "input_text": None,
            "input_ids": array("q", ids),
            "input_embeds": None,
            "mm_inputs": None,
            "token_type_ids": None,
            "return_logprob": False,
            "logprob_start_len": -1,
            "top_logprobs_num": 0,
            "token_ids_logprob": None,
            "stream": True,
        }
        params: dict[str, Any] = {"max_new_tokens": 8, "stop_strs": [], "stop_regex_strs": [], "is_normalized": True}
        for name, value in fields.items():
            (request if name in _REQUEST_FIELDS else params)[name] = value
        if params["stop_strs"]:
            params["stop_str_max_len"] = max(map(len, params["stop_strs"]))
        return make("TokenizedGenerateReqInput", sampling_params=make("SamplingParams", **params), **request)

    def collect(self, *rids: str) -> dict[str, list[dict[str, Any]]]:
        """Every output of these requests up to their ends: per rid, the columns of each chunk."""
        chunks: dict[str, list[dict[str, Any]]] = {rid: [] for rid in rids}
        open_rids = set(rids)
        while open_rids:
            message = self.receive()
            if message.__struct_name__ == "AbortReq":
                open_rids.discard(message.rid)
                chunks[message.rid].append({"finished_reasons": message.finished_reason, "message": message})
                continue
            for i, rid in enumerate(message.rids):
                columns = {name: value[i] for name, value in vars(message).items() if isinstance(value, list)}
                chunks[rid].append(columns)
                if columns["finished_reasons"] is not None:
                    open_rids.discard(rid)
        return chunks

    def close(self) -> None:
        """Close the sockets."""
        self._pull.close(0)
        self._push.close(0)
        self._context.term()
        Path(self.endpoint.removeprefix("ipc://")).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def text_of(chunks: list[dict[str, Any]]) -> str:
    """A request's text from its chunks."""
    return "".join(chunk["output_strs"] for chunk in chunks)
