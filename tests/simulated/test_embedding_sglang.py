"""The simulated engine's embeddings against the installed sglang's own classes, in both directions and codecs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(240)]

PROGRAM = """
import pickle, sys
from array import array
import torch
from sglang.srt.managers import io_struct as io
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang_subgw.simulated import ByteTokenizer
from sglang_subgw.simulated.wire.checks import violations
from sglang_subgw.simulated.embedding import SimulatedEmbedding, embedding_messages, embedding_of
from sglang_subgw.simulated.wire.frames import frame_codec

name = sys.argv[1]
codec = frame_codec(name)
encode = pickle.dumps if name == "pickle" else io.msgpack_encode
decode = pickle.loads if name == "pickle" else io.msgpack_decode

params = SamplingParams(max_new_tokens=0)
params.normalize(None)
stock = io.TokenizedEmbeddingReqInput(
    rid="r" * 32, http_worker_ipc="ipc:///w", input_text="abc", input_ids=array("q", [97, 98]), mm_inputs=None,
    token_type_ids=[0, 1], sampling_params=params, return_pooled_hidden_states=True, dimensions=4,
)
batch = codec.decode(encode(io.BatchTokenizedEmbeddingReqInput(batch=[stock, stock])))
ours = batch.batch[1]
assert not list(violations(batch)), list(violations(batch))
assert ours.input_ids == stock.input_ids and ours.token_type_ids == [0, 1] and ours.dimensions == 4

embedding = SimulatedEmbedding(ours, ByteTokenizer())
embedding.step()
(worker, message), = embedding_messages([embedding])
back = decode(codec.encode(message))
assert type(back) is io.BatchEmbeddingOutput, type(back)
vector = embedding_of([97, 98], [0, 1])[:4]
assert back.rids == [stock.rid] and back.embeddings == [vector] and back.prompt_tokens == [2]
assert back.finished_reasons == [{"type": "length", "length": 0}]
assert torch.equal(back.pooled_hidden_states[0], torch.tensor(vector) / 2)
stats = back.time_stats if name == "pickle" else io.unwrap_from_pickle(back.time_stats)
assert type(stats[0]).__name__ == "SchedulerReqTimeStats"
print("same")
"""


@pytest.mark.parametrize("codec_name", ["pickle", "msgpack"])
def test_frames_are_those_of_the_installed_sglang(codec_name: str, tmp_path: Path):
    pytest.importorskip("sglang.version")
    environment = {**os.environ, "SGLANG_USE_PICKLE_IPC": "1" if codec_name == "pickle" else "0"}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, codec_name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.stdout.endswith("same\n"), done.stderr[-4000:]
