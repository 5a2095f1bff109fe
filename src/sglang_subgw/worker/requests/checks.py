"""What a request to generate must hold to before it is sent, beside what every kind of request must."""

from __future__ import annotations

from array import array
from typing import Any

from ...contract import EngineContract
from ...errors import RequestRejected
from ...wire.outgoing.token_ids import packed
from .expand import Prompt
from .limits import check_booleans, check_common, check_positions, fit
from .request import GenerateRequest
from .routing import check_ranks


def check_request(request: GenerateRequest, contract: EngineContract) -> None:
    """What concerns the whole request; raises RequestRejected."""
    features = contract.features
    if not contract.model.is_generation:
        raise RequestRejected("This model is an embedding model: it doesn't generate.")
    if request.session_id is not None and request.session_params is not None:
        raise RequestRejected("session_id and session_params cannot both be set.", param="session_id")
    if request.session_params is not None and request.rid is not None:
        # A session names its turns by the engine's ids, which a rid of the client's own would hide.
        raise RequestRejected("rid can't be chosen for a request of a session.", param="rid")
    check_common(request, contract)
    check_booleans(request, "stream", "return_text_in_logprobs", "return_prompt_token_ids", "return_routed_experts")
    if features.skip_tokenizer_init and (request.return_routed_experts or request.return_indexer_topk):
        name = "return_routed_experts" if request.return_routed_experts else "return_indexer_topk"
        raise RequestRejected(f"{name} is not implemented with skip_tokenizer_init.", param=name)
    check_ranks(request, contract)


def check_prompt(prompt: Prompt, ids: list[int], sampling: dict[str, Any], contract: EngineContract) -> array[int]:
    """The ids to send, cut if the engine allows that; adapts `sampling` likewise; raises RequestRejected."""
    model, features = contract.model, contract.features
    limit = model.context_length
    ids, count = fit(ids, contract)
    # The client's own number, before the server's preferences, as SGLang does.
    wanted = prompt.sampling_params.get("max_new_tokens")
    if wanted is not None:
        wanted = sampling["max_new_tokens"]
        if wanted + count > limit:
            if not features.allow_auto_truncate:
                raise RequestRejected(
                    f"Requested token count exceeds the model's maximum context length of {limit} tokens. "
                    f"You requested a total of {wanted + count} tokens: {count} tokens from the input messages and "
                    f"{wanted} tokens for the completion. Please reduce the number of tokens in the input messages or "
                    "the completion to fit within the limit."
                )
            sampling["max_new_tokens"] = max(0, limit - count)
    _check_logprobs(prompt, model.vocab_size)
    _check_scoring(prompt, sampling, len(ids), contract)
    _check_hidden_states(prompt.return_hidden_states, contract)
    if prompt.custom_logit_processor and not features.enable_custom_logit_processor:
        raise RequestRejected(
            "The server is not configured to enable custom logit processor. "
            "Please set `--enable-custom-logit-processor` to enable this feature.",
            param="custom_logit_processor",
        )
    return packed(ids)


def _check_logprobs(prompt: Prompt, vocab_size: int) -> None:
    if prompt.logprob_start_len < -1:
        raise RequestRejected(
            f"logprob_start_len must be at least -1, got {prompt.logprob_start_len}.", param="logprob_start_len"
        )
    if not 0 <= prompt.top_logprobs_num <= vocab_size:
        raise RequestRejected(
            f"top_logprobs_num must be in [0, {vocab_size}], got {prompt.top_logprobs_num}.", param="top_logprobs_num"
        )
    for token in prompt.token_ids_logprob or ():
        if type(token) is not int:
            raise RequestRejected("token_ids_logprob must be a flat list of integers.", param="token_ids_logprob")
        if not 0 <= token < vocab_size:
            raise RequestRejected(
                f"token_ids_logprob contains out-of-vocabulary token id {token}; valid range is [0, {vocab_size}).",
                param="token_ids_logprob",
            )


def _check_scoring(prompt: Prompt, sampling: dict[str, Any], count: int, contract: EngineContract) -> None:
    """Scores at places of the prompt take the place of a token: the engine can't do both."""
    for name in ("multi_item_delimiter_indices", "token_indices_to_pool"):
        if getattr(prompt, name) is not None and not (
            sampling.get("max_new_tokens") == 0
            and prompt.return_logprob
            and prompt.logprob_start_len == 0
            and prompt.token_ids_logprob
        ):
            raise RequestRejected(
                f"{name} is for scoring: it needs max_new_tokens=0, return_logprob=True, logprob_start_len=0 and "
                "token_ids_logprob.",
                param=name,
            )
    check_positions(prompt, count, contract)


def _check_hidden_states(mode: bool | str, contract: EngineContract) -> None:
    if not mode:
        return
    server = contract.server_args.get("return_hidden_states_mode")
    if contract.features.enable_return_hidden_states and server not in ("last", "full"):
        server = "full"
    if server not in ("last", "full"):
        raise RequestRejected(
            "The server is not configured to return hidden states. Please set `--return-hidden-states-mode last`, "
            "`--return-hidden-states-mode full`, or the legacy `--enable-return-hidden-states` flag.",
            param="return_hidden_states",
        )
    if mode is True and server == "last":
        raise RequestRejected(
            "The requested return_hidden_states mode exceeds the server maximum `last`. Please launch with "
            "`--return-hidden-states-mode full` to allow return_hidden_states=True.",
            param="return_hidden_states",
        )
