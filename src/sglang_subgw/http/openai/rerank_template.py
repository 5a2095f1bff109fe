"""Which way of ranking a model is made for, and its prompts: SGLang's detection and its rendering."""

from __future__ import annotations

import enum
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ...contract import EngineContract
from ...errors import RequestRejected


class Backend(enum.Enum):
    """How a document's score is had."""

    CROSS_ENCODER = "cross encoder"
    TEXT = "text"
    """A model that is asked for a yes or a no."""
    MEDIA = "media"
    """The same, with images and videos."""


class RerankTemplate:
    """The model's chat template, as far as it is one for ranking."""

    def __init__(self, contract: EngineContract) -> None:
        self._source = contract.model.chat_template or ""
        source = self._source.lower()
        self._is_reranker = "answer can only be" in source and '"yes"' in source and '"no"' in source
        model = contract.model.model_path.lower()
        has_media = "<|vision_start|>" in source or "<|image_pad|>" in source
        self._has_media = (self._is_reranker and has_media) or "qwen3-vl" in model or "qwen3vl" in model

    def backend(self, multimodal: bool) -> Backend:
        """What ranks a request, of parts or of plain texts."""
        if self._has_media or (multimodal and self._is_reranker):
            return Backend.MEDIA
        return Backend.TEXT if self._is_reranker else Backend.CROSS_ENCODER

    def of_text(self, query: str, document: str, instruct: str | None) -> str:
        """The prompt of a query and a document; raises RequestRejected with the template's own complaint."""
        messages = [{"role": "user", "content": query}, {"role": "user", "content": document}]
        return self._render(instruct, messages=messages)

    def of_media(self, query: list[dict[str, Any]], document: list[dict[str, Any]], instruct: str | None) -> str:
        """The same of parts."""
        return self._render(instruct, query=query, document=document)

    def _render(self, instruct: str | None, **variables: Any) -> str:
        # A template's default for it counts only where it is not defined.
        given = {"instruct": instruct} if instruct else {}
        environment = ImmutableSandboxedEnvironment(loader=jinja2.BaseLoader(), autoescape=False)
        try:
            return environment.from_string(self._source).render(**variables, **given)
        except RecursionError:
            raise RequestRejected("The chat template recursed too deeply.") from None
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise RequestRejected(str(error) or f"The chat template failed: {type(error).__name__}") from error
