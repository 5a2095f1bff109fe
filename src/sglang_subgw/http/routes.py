"""Which path is served by what, and which of SGLang's paths are known but not served yet."""

from __future__ import annotations

import re
from typing import Final

from .core.endpoint import Endpoint, Handler
from .core.errors import ErrorBody
from .core.errors import error_body as general_error
from .native import generate
from .native.admin import Admin
from .native.control import CONTROLS, handler
from .native.encode import EncodeHandler
from .native.loads import Loads
from .openai.chat import ChatHandler
from .openai.completions import CompletionsHandler
from .openai.embeddings import EmbeddingsHandler
from .openai.errors import error_body, stream_error_body
from .openai.models import ModelHandler, ModelsHandler
from .openai.rerank import RerankHandler
from .openai.score import ScoreHandler
from .services import Services

type Route = tuple[tuple[str, ...], Endpoint]
"""The methods that are answered, and what answers them."""

MODEL: Final = "/v1/models/"
"""All paths that begin like this are one route: the rest is the model's name."""


def routes(services: Services) -> dict[str, Route]:
    """All routes by their paths."""
    admin, loads = Admin(services), Loads(services)

    def route(methods: tuple[str, ...], handler: Handler, *forms: ErrorBody) -> Route:
        answered = (*methods, "HEAD") if "GET" in methods else methods
        return answered, Endpoint(handler, *(forms or (general_error,)))

    return {
        "/v1/chat/completions": route(("POST",), ChatHandler(services), error_body, stream_error_body),
        "/generate": route(("POST", "PUT"), generate.GenerateHandler(services), *_GENERATE),
        "/v1/completions": route(("POST",), CompletionsHandler(services), error_body, stream_error_body),
        "/v1/embeddings": route(("POST",), EmbeddingsHandler(services), error_body),
        "/v1/rerank": route(("POST", "PUT"), RerankHandler(services), error_body),
        "/v1/score": route(("POST",), ScoreHandler(services), error_body),
        "/encode": route(("POST", "PUT"), EncodeHandler(services), generate.error_body),
        "/classify": route(("POST", "PUT"), EncodeHandler(services), generate.error_body),
        "/v1/models": route(("GET",), ModelsHandler(services), error_body),
        MODEL: route(("GET",), ModelHandler(services), error_body),
        "/health": route(("GET",), admin.health),
        "/health_generate": route(("GET",), admin.health),
        "/ready": route(("GET",), admin.alive),
        "/ping": route(("GET",), admin.alive),
        "/model_info": route(("GET",), admin.model_info),
        "/get_model_info": route(("GET",), admin.model_info),
        "/server_info": route(("GET",), admin.server_info),
        "/get_server_info": route(("GET",), admin.server_info),
        "/abort_request": route(("POST",), admin.abort_request),
        "/flush_cache": route(("GET", "POST"), admin.flush_cache),
        "/v1/loads": route(("GET",), loads.loads),
        "/get_load": route(("GET",), loads.load),
        **{control.path: route(control.methods, handler(services, control)) for control in CONTROLS},
        "/": route(("GET",), admin.root),
    }


_GENERATE: Final[tuple[ErrorBody, ErrorBody]] = (generate.error_body, generate.stream_error_body)

_NOT_SERVED: Final = re.compile(
    "/("
    "tokenize|detokenize|v1/(classify|tokenize|detokenize|decisions|"
    "responses(/.*)?|messages(/count_tokens)?|systemone|audio/transcriptions|realtime)|api/(chat|generate|tags|show)|"
    "vertex_generate|invocations|metrics|parse_function_call|separate_reasoning|"
    "configure_logging|set_trace_level|slow_down|pd_role_switch|set_internal_state|dumper/.*|weights_checker|"
    "(add|remove)_external_corpus|list_external_corpora|hicache/.*|get_hicache_l3_cache_layout|"
    "(get_)?remote_instance_transfer_engine_info|"
    "init_weights_send_group_for_remote_instance|send_weights_to_remote_instance|docs|redoc|openapi.json"
    ")"
)


def missing(path: str) -> str:
    """Why there is nothing at `path`."""
    if _NOT_SERVED.fullmatch(path):
        return f"{path} is a route of SGLang's server that this gateway does not implement yet."
    return f"There is no route {path} here."
