"""Garbage collection in the engine's processes: what they have at the end of their start is left out of it.

SGLang's server asks for this after its warm-up, by `/freeze_gc`. Without it, a full collection stops the detokenizer,
and with it every stream, for as long as it takes to look at all that torch and transformers are made of.
"""

from __future__ import annotations

from typing import Final

import zmq

from ...contract import EngineContract
from ...wire.codec import codec_for
from ...wire.outgoing.freezing import freeze_fields

_LINGER_MS: Final = 1000


def freeze_engine(contract: EngineContract) -> None:
    """Let the schedulers, and by them the detokenizers, freeze what they have; this process is not theirs to freeze."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        push.linger = _LINGER_MS
        push.connect(contract.wire.worker_endpoint)
        push.send(codec_for(contract.wire).encode("FreezeGCReq", freeze_fields(contract)))
