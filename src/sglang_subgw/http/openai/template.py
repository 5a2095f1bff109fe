"""The model's chat template, rendered as transformers' apply_chat_template renders it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ...errors import RequestRejected

RESERVED: Final = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Names that a request's chat_template_kwargs can't set."""


class ChatTemplate:
    """A template, compiled once; special tokens are variables in it."""

    def __init__(self, source: str | None, special_tokens: dict[str, Any]) -> None:
        self._variables = special_tokens
        self._template: jinja2.Template | None = None
        self._fault = "The model has no chat template: use /v1/completions."
        if source is not None:
            try:
                self._template = _environment().from_string(source)
            except jinja2.TemplateError as error:
                self._fault = f"The model's chat template can't be used: {error}"

    def render(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        """The prompt of a conversation; raises RequestRejected with the template's own complaint."""
        if self._template is None:
            raise RequestRejected(self._fault)
        try:
            return self._template.render(
                messages=messages,
                tools=None,
                documents=variables.get("documents"),
                add_generation_prompt=True,
                **{**self._variables, **{name: value for name, value in variables.items() if name != "documents"}},
            )
        except RecursionError:
            raise RequestRejected("The chat template recursed too deeply on these messages.") from None
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise RequestRejected(str(error) or f"The chat template failed: {type(error).__name__}") from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's own text for training; here it only renders its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> Any:
        return caller()


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    # Not jinja's own, which escapes HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
