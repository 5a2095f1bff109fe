"""The simulated engine's frames against the installed sglang's own classes, in both directions and codecs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_subgw.simulated.wire.schema import VERSION, field_lists

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(240)]

PROGRAM = """
import pickle, sys
from array import array
from sglang.srt.managers import io_struct as io
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang_subgw.simulated import ByteTokenizer, logprob_of
from sglang_subgw.simulated.wire.frames import frame_codec
from sglang_subgw.simulated.generation import SimulatedGeneration, stray_request
from sglang_subgw.simulated.outputs import messages
from sglang.srt.managers.tokenizer_control_mixin import _COMMUNICATOR_SPECS
from sglang_subgw.simulated.wire.checks import UNANSWERED, violations
from sglang_subgw.simulated.control.plane import ControlPlane, answer_kind
from sglang_subgw.simulated.wire.structs import make, member

name = sys.argv[1]
codec = frame_codec(name)
encode = pickle.dumps if name == "pickle" else io.msgpack_encode
decode = pickle.loads if name == "pickle" else io.msgpack_decode

params = SamplingParams(max_new_tokens=3, stop=["x"], stop_token_ids=[7], temperature=0.0)
params.normalize(type("Tokenizer", (), {"encode": lambda self, text, add_special_tokens: list(text)})())
stock = io.TokenizedGenerateReqInput(
    rid="r" * 32, http_worker_ipc="ipc:///w", input_text="abc", input_ids=array("q", [97, 98]), input_embeds=None,
    mm_inputs=None, token_type_ids=None, sampling_params=params, return_logprob=True, logprob_start_len=0,
    top_logprobs_num=2, token_ids_logprob=[1], stream=True,
)
ours = codec.decode(encode(stock))
assert not list(violations(ours)), list(violations(ours))
assert ours.sampling_params.stop_strs == ["x"] and ours.sampling_params.top_k == 1 and ours.input_ids == stock.input_ids
batch = codec.decode(encode(io.BatchTokenizedGenerateReqInput(batch=[stock, stock])))
assert not list(violations(batch)) and batch.batch[1].rid == stock.rid

generation = SimulatedGeneration(ours, iter(b"abc"), ByteTokenizer(), limit=9)
for _ in range(3):
    generation.step()
(worker, message), = messages([generation], grouped=True, weight_version="v", vocab_size=300)
back = decode(codec.encode(message))
assert type(back) is io.BatchStrOutput, type(back)
assert back.rids == [stock.rid] and back.output_strs == ["abc"] and list(back.output_ids[0]) == [97, 98, 99]
assert back.finished_reasons == [{"type": "length", "length": 3}] and back.weight_versions[0][0].version == "v"
assert back.output_token_logprobs_val[0][0] == logprob_of(97, 2)
stats = back.time_stats if name == "pickle" else io.unwrap_from_pickle(back.time_stats)
assert type(stats[0]).__name__ == "SchedulerReqTimeStats"
for kind, fields in {
    "AbortReq": {"rid": "r", "finished_reason": {"type": "abort", "status_code": 503, "message": "m"}},
    "HealthCheckOutput": {}, "PauseContinueBroadcastReq": {"is_pause": True},
    "FlushCacheReqOutput": {"success": True}, "GetInternalStateReqOutput": {"internal_state": {"a": [1, {"b": None}]}},
}.items():
    got = decode(codec.encode(make(kind, http_worker_ipc="ipc:///w", **fields)))
    assert type(got) is getattr(io, kind)
    assert all(getattr(got, key) == value for key, value in fields.items())
start = codec.decode(encode(io.ProfileReq(http_worker_ipc="ipc:///w")))
assert start.req_type == 1 and not list(violations(start)), list(violations(start))
stop = decode(codec.encode(make("ProfileReq", req_type=member("sglang.srt.managers.io_struct.ProfileReqType", 2))))
assert stop.req_type is io.ProfileReqType.STOP_PROFILE
loaded = {"success": True, "error_message": "", "loaded_adapters": {"a": "/a"}}
assert decode(codec.encode(make("LoRAUpdateOutput", **loaded))) == io.LoRAUpdateOutput(**loaded)
place = make("ParallelismInfo", role="target", **dict.fromkeys(
    ("tp_rank", "tp_size", "dp_rank", "dp_size", "pp_rank", "pp_size", "rank", "size"), 1))
checksum = make("ChecksumInfo", checksums={"w": "0"}, per_gpu_checksum="0", parallelism_info=[place])
checked = decode(codec.encode(make("CheckWeightsReqOutput", success=True, message="", payload=[checksum])))
assert checked.payload[0].parallelism_info[0].role == "target"
asked = {answer_kind(kind) for kind in ControlPlane(None, None, keep_received=False).kinds - UNANSWERED}
specified = {spec[1].__name__ for spec in _COMMUNICATOR_SPECS}
assert asked == specified | {"OpenSessionReqOutput", "UpdateWeightFromDiskReqOutput"}, asked ^ specified
print("same")
"""


@pytest.mark.parametrize("codec_name", ["pickle", "msgpack"])
def test_frames_are_those_of_the_installed_sglang(codec_name: str, tmp_path: Path):
    pytest.importorskip("sglang.version")
    environment = {**os.environ, "SGLANG_USE_PICKLE_IPC": "1" if codec_name == "pickle" else "0"}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, codec_name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.stdout.endswith("same\n"), done.stderr[-4000:]


def test_the_schema_is_that_of_the_installed_sglang(tmp_path: Path):
    pytest.importorskip("sglang.version")
    program = (
        "import json, sys\n"
        "from sglang.version import __version__\n"
        "from sglang_subgw.engine.facts.schema import read_schema\n"
        "json.dump([__version__, read_schema()], sys.stdout, default=str)"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    version, installed = json.loads(done.stdout)
    if version != VERSION:
        pytest.skip(f"the kept schema is that of {VERSION}, installed is {version}")
    kept = {name: [list(field) for field in fields] for name, fields in field_lists().items()}
    assert {name: installed[name] for name in kept if name in installed} == {
        name: fields for name, fields in kept.items() if name in installed
    }
    assert {"TokenizedGenerateReqInput", "SamplingParams", "BatchStrOutput", "AbortReq"} <= installed.keys()
