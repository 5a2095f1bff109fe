"""What SGLang calls freezing garbage collection: objects that are there already are not looked at any more."""

from __future__ import annotations

from typing import Any

from ...contract import EngineContract


def freeze_fields(contract: EngineContract) -> dict[str, Any]:
    """The fields of this SGLang's FreezeGCReq."""
    known = {name for name, _ in contract.wire.schema.get("FreezeGCReq", ())}
    return {"gc_threshold": contract.server_args.get("gc_threshold")} if "gc_threshold" in known else {}
