"""The published field lists against the installed sglang's own classes, as each codec puts them on the wire."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

_SCRIPT = """
import json, pickle, typing, warnings
warnings.simplefilter("ignore")
import msgspec
from sglang_subgw.engine.facts.schema import message_classes, read_modules, read_schema
from sglang.srt.managers import io_struct
from sglang.srt.sampling.sampling_params import SamplingParams

schema, modules = read_schema(), read_modules()
sent = {cls.__name__ for base in (io_struct.BaseReq, io_struct.BaseBatchReq) for cls in base.__subclasses__()}
order = {cls.__name__: list(cls.__struct_fields__) for cls in message_classes()}
params = SamplingParams(max_new_tokens=7)
params.normalize(None)
abort = io_struct.AbortReq(rid="r", abort_all=True)
print(json.dumps({
    "missing": sorted(sent - set(schema)),
    "order": order == {name: [field for field, _ in fields] for name, fields in schema.items()},
    "modules": all(cls.__module__ == modules[cls.__name__] for cls in message_classes()),
    "json": json.loads(json.dumps(schema)) == {name: [list(f) for f in fields] for name, fields in schema.items()},
    "params": [field for field, _ in schema["SamplingParams"]],
    "array": len(msgspec.msgpack.decode(msgspec.msgpack.encode(params))),
    "abort": [default for _, default in schema["AbortReq"]],
    "abort_array": msgspec.msgpack.decode(io_struct.msgpack_encode(abort)),
    "reduced": sorted(abort.__reduce__()[1][1]),
    "factory": dict(schema["LoRARef"])["lora_id"],
    "text": dict(schema["TokenizedGenerateReqInput"])["input_text"],
}))
"""


@pytest.fixture(scope="module")
def seen() -> dict[str, object]:
    pytest.importorskip("msgspec")
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=280)
    if "No module named 'sglang'" in done.stderr:
        pytest.skip("sglang is not installed")
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_every_message_is_published_in_its_own_order(seen: dict[str, object]) -> None:
    assert seen["missing"] == []
    assert seen["order"]
    assert seen["modules"]
    assert seen["json"]


def test_msgpack_arrays_follow_the_lists(seen: dict[str, object]) -> None:
    assert seen["array"] == len(seen["params"])
    assert seen["abort_array"][1:4] == ["r", None, True]
    assert len(seen["abort_array"]) == len(seen["abort"]) + 1


def test_pickles_name_the_fields(seen: dict[str, object]) -> None:
    assert {"rid", "http_worker_ipc", "abort_all"} <= set(seen["reduced"])


def test_what_has_no_constant_default_is_required(seen: dict[str, object]) -> None:
    assert seen["factory"] == "\x00required"
    assert seen["text"] == "\x00required"
