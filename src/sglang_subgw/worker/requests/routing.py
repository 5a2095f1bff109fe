"""Which scheduler a request goes to, and whom it meets there: SGLang's schedulers end by what is wrong about it."""

from __future__ import annotations

import re
import socket
from typing import Final

from ...contract import EngineContract
from ...errors import RequestRejected
from .expand import Prompt
from .plan import RequestPlan, shown
from .request import GenerateRequest

FAKE_HOST: Final = "2.2.2.2"
"""SGLang's own: no prefill server has it, and nothing is transferred from it."""

_RANKS: Final = range(2**31)
_PORTS: Final = range(1, 2**16)
_ROOMS: Final = range(1, 2**63)
"""In a transfer 0 means that nothing has come yet."""
_HOST_NAME: Final = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")


def rank_of(request: GenerateRequest) -> int | None:
    """The data-parallel rank that a request asks for."""
    return request.data_parallel_rank if request.routed_dp_rank is None else request.routed_dp_rank


def check_ranks(request: GenerateRequest, contract: EngineContract) -> None:
    """The ranks that a request names: of this engine, and of the one that prefills for it; raises RequestRejected."""
    rank, ranks = rank_of(request), max(contract.features.num_dp_ranks, 1)
    if rank is not None and not (type(rank) is int and 0 <= rank < ranks):
        raise RequestRejected(f"routed_dp_rank={rank!r} out of range [0, {ranks})", param="routed_dp_rank")
    # How many the other engine has isn't known here: it answers for one that it doesn't have.
    prefill = request.disagg_prefill_dp_rank
    if prefill is not None and not (type(prefill) is int and prefill in _RANKS):
        raise RequestRejected(
            f"disagg_prefill_dp_rank must be a data-parallel rank, an integer from 0 up, not {prefill!r}.",
            param="disagg_prefill_dp_rank",
        )


def follows_rooms(contract: EngineContract) -> bool:
    """Its controller sends each request to the rank that its bootstrap room tells, and ends by one without a room."""
    method = contract.server_args.get("load_balance_method")
    return method == "follow_bootstrap_room" and contract.features.num_dp_ranks > 1


def check_meeting(request: GenerateRequest, plan: RequestPlan[Prompt], contract: EngineContract) -> None:
    """Where prefill and decode meet; notes the rooms that nobody else may be in meanwhile; raises RequestRejected."""
    features = contract.features
    if features.disaggregation_mode == "null":
        if follows_rooms(contract) and rank_of(request) is None:
            _check_has_room(plan)
        return
    for prompt in plan.prompts:
        _check_address(prompt)
    if features.disaggregation_transfer_backend == "fake":
        return
    _check_has_room(plan)
    transfers = [prompt for prompt in plan.prompts if prompt.bootstrap_host != FAKE_HOST]
    if not transfers:
        return
    for prompt in transfers:
        if prompt.bootstrap_room not in _ROOMS:
            raise RequestRejected(
                f"bootstrap_room must be between 1 and {_ROOMS[-1]}, not {prompt.bootstrap_room}.",
                param="bootstrap_room",
            )
        if features.disaggregation_mode == "decode" and prompt.bootstrap_host is None:
            raise RequestRejected(
                "bootstrap_host is needed: it is where the prefill server is.", param="bootstrap_host"
            )
    if plan.samples > 1:
        raise RequestRejected(
            "n must be 1 with disaggregated prefill and decode: each answer needs a bootstrap room of its own. "
            "Send a request for each.",
            param="n",
        )
    plan.rooms = [prompt.bootstrap_room for prompt in transfers if prompt.bootstrap_room is not None]
    if len(set(plan.rooms)) < len(plan.rooms):
        raise RequestRejected("bootstrap_room must be another one for each prompt.", param="bootstrap_room")


def _check_has_room(plan: RequestPlan[Prompt]) -> None:
    if any(prompt.bootstrap_room is None for prompt in plan.prompts):
        raise RequestRejected(
            "Invalid request: Disaggregated request received without bootstrap room id.", param="bootstrap_room"
        )


def _check_address(prompt: Prompt) -> None:
    host, port = prompt.bootstrap_host, prompt.bootstrap_port
    if host is not None and not _is_host(host):
        raise RequestRejected(
            f"bootstrap_host must be a host's name or address, not {shown(host)}.", param="bootstrap_host"
        )
    if port is not None and port not in _PORTS:
        raise RequestRejected(f"bootstrap_port must be between 1 and 65535, not {port}.", param="bootstrap_port")


def _is_host(text: str) -> bool:
    if _HOST_NAME.fullmatch(text):
        return True
    address = text.removeprefix("[").removesuffix("]") if text.startswith("[") and text.endswith("]") else text
    try:
        socket.inet_pton(socket.AF_INET6, address)
    except (OSError, ValueError):
        return False
    return True
