"""What SGLang adds to OpenAI's answers on request: hidden states, `sglext`, weight versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

type Meta = dict[str, Any]

_SPECULATION: Final[dict[str, Any]] = {
    "spec_accept_rate": 0.0,
    "spec_accept_length": 0.0,
    "spec_cap_length": 0.0,
    "spec_block_accept_length": 0.0,
    "spec_num_correct_drafts": 0,
    "spec_num_proposed_drafts": 0,
    "spec_verify_ct": 0,
    "spec_correct_drafts_histogram": [],
    "spec_cap_lens_histogram": [],
}


def wants_meta(values: dict[str, Any]) -> bool:
    """Whether the answer holds anything of this module that is read from meta_info."""
    return bool(
        values["return_hidden_states"]
        or values["return_routed_experts"]
        or values["return_cached_tokens_details"]
        or values["return_spec_tokens_details"]
    )


def metadata(meta: Meta) -> dict[str, Any]:
    """The answer's `metadata`."""
    found = {"weight_version": meta.get("weight_version")}
    if "weight_versions" in meta:
        found["weight_versions"] = meta["weight_versions"]
    return found


def hidden_states(meta: Meta, wanted: bool | str) -> Any:
    """The choice's `hidden_states`, or None: those of the last token."""
    states = meta.get("hidden_states")
    if not wanted or states is None or wanted == "last":
        return states if wanted else None
    return states[-1] if len(states) > 1 else []


def sglext(
    metas: Sequence[Meta],
    values: dict[str, Any],
    *,
    input_ids: list[int] | None = None,
    output_ids: list[list[int]] | None = None,
) -> dict[str, Any] | None:
    """SGLang's extension object, or None when there is nothing in it."""
    found: dict[str, Any] = {}
    if values["return_routed_experts"]:
        found["routed_experts"] = _first(metas, "routed_experts")
    if values["return_cached_tokens_details"]:
        found["cached_tokens_details"] = _cached(_first(metas, "cached_tokens_details"))
    if values["return_spec_tokens_details"]:
        details = [_speculation(meta) for meta in metas if not meta.keys().isdisjoint(_SPECULATION)]
        if details:
            found["spec_tokens_details"] = details if values["n"] > 1 else details[0]
    found["input_ids"] = input_ids
    found["output_ids"] = output_ids
    return {name: value for name, value in found.items() if value is not None} or None


def _first(metas: Sequence[Meta], name: str) -> Any:
    return next((meta[name] for meta in metas if meta.get(name) is not None), None)


def _cached(details: Meta | None) -> Meta | None:
    if details is None:
        return None
    found = {"device": details.get("device", 0), "host": details.get("host", 0)}
    if "storage" in details:
        found["storage"] = details.get("storage", 0)
        if details.get("storage_backend") is not None:
            found["storage_backend"] = details["storage_backend"]
    return found


def _speculation(meta: Meta) -> Meta:
    return {name: meta.get(name) or default for name, default in _SPECULATION.items()}
