"""Ending in the engine what a dead shard left running there."""

from __future__ import annotations

import zmq

from ..contract import EngineContract
from ..shard import rids
from ..wire.codec import codec_for


class RouterFence:
    """Aborts by rid prefix: the scheduler's own rule, and no rid is another's prefix but by our design."""

    def __init__(self, contract: EngineContract) -> None:
        self._contract = contract
        self._codec = codec_for(contract.wire)
        self._context = zmq.Context()
        self._push = self._context.socket(zmq.PUSH)
        self._push.linger = 200
        self._push.connect(contract.wire.worker_endpoint)

    def __call__(self, index: int, generation: int) -> None:
        """Abort all requests of one life of one shard."""
        frame = self._codec.encode("AbortReq", {"rid": rids.prefix(self._contract.engine_id, index, generation)})
        self._push.send(frame, zmq.NOBLOCK)

    def close(self) -> None:
        """Close the socket."""
        self._push.close()
        self._context.term()
