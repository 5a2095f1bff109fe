"""OpenAI's `response_format` as the grammar parameter that SGLang samples under."""

from __future__ import annotations

import json
from typing import Any, Final

from ...errors import RequestRejected
from ..core.fields import boolean, list_of, mapping, one_of, string

_KIND: Final = one_of("text", "json_object", "json_schema", "structural_tag")


def read_response_format(value: Any, name: str) -> dict[str, str] | None:
    """One sampling parameter, or None for plain text; a check for the table of fields."""
    kind = _KIND(mapping(value, name).get("type"), f"{name}.type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_schema": '{"type": "object"}'}
    if kind == "json_schema":
        return {"json_schema": json.dumps(_schema(value, name))}
    return {"structural_tag": json.dumps(_structural_tag(value, name))}


def _schema(value: dict[str, Any], name: str) -> dict[str, Any]:
    if value.get("json_schema") is None:
        # The schema right in response_format is SGLang's own short form.
        schema = value.get("schema")
    else:
        inner = mapping(value["json_schema"], f"{name}.json_schema")
        string(inner.get("name"), f"{name}.json_schema.name")
        if inner.get("strict") is not None:
            boolean(inner["strict"], f"{name}.json_schema.strict")
        schema = inner.get("schema")
    if schema is None:
        raise RequestRejected("schema_ is required for json_schema response format request.", param=name)
    return mapping(schema, f"{name}.schema")


def _structural_tag(value: dict[str, Any], name: str) -> dict[str, Any]:
    if "structures" not in value:
        return value
    return {
        "type": "structural_tag",
        "structures": list_of(_structure)(value["structures"], f"{name}.structures"),
        "triggers": list_of(string)(value.get("triggers"), f"{name}.triggers"),
        "at_least_one": boolean(value.get("at_least_one", False), f"{name}.at_least_one"),
    }


def _structure(value: Any, name: str) -> dict[str, Any]:
    structure = mapping(value, name)
    schema = structure.get("schema")
    return {
        "begin": string(structure.get("begin"), f"{name}.begin"),
        "schema": None if schema is None else mapping(schema, f"{name}.schema"),
        "end": string(structure.get("end"), f"{name}.end"),
    }
