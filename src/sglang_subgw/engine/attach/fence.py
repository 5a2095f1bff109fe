"""Ending in the engine what a dead shard, or a dead gateway, left running there."""

from __future__ import annotations

from typing import Final

import zmq

from ...contract import EngineContract, rids
from ...wire.codec import codec_for

_LINGER_MS: Final = 1000


class RouterFence:
    """Aborts by rid prefix: the scheduler's own rule, and no rid is another's prefix but by our design."""

    def __init__(self, contract: EngineContract) -> None:
        self._gateway_id = contract.gateway_id
        self._codec = codec_for(contract.wire)
        self._context = zmq.Context()
        self._push = self._context.socket(zmq.PUSH)
        self._push.linger = _LINGER_MS
        self._push.connect(contract.wire.worker_endpoint)

    def __call__(self, index: int, generation: int) -> None:
        """Abort all requests of one life of one shard of the contract's gateway."""
        self._abort(rids.prefix(self._gateway_id, index, generation))

    def abort_gateway(self, gateway_id: str) -> None:
        """Abort all requests of a gateway; raises ValueError for what isn't a gateway's id."""
        if len(gateway_id) != rids.GATEWAY_DIGITS:
            # Shorter, it would reach other gateways' requests; "" would reach all.
            raise ValueError(f"a gateway id has {rids.GATEWAY_DIGITS} hex digits, not {gateway_id!r}")
        self._abort(gateway_id)

    def close(self) -> None:
        """Close the socket."""
        self._push.close()
        self._context.term()

    def _abort(self, prefix: str) -> None:
        self._push.send(self._codec.encode("AbortReq", {"rid": prefix}), zmq.NOBLOCK)
