"""Which path is served by what, and which of SGLang's paths are known but not served yet."""

from __future__ import annotations

import re
from typing import Final

from starlette.routing import BaseRoute, Route

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


def routes(services: Services) -> list[BaseRoute]:
    """All routes, the busiest first: they are tried in order."""
    admin, loads = Admin(services), Loads(services)

    def route(path: str, methods: tuple[str, ...], handler: Handler, *forms: ErrorBody) -> Route:
        return Route(path, Endpoint(handler, *(forms or (general_error,))), methods=list(methods))

    return [
        route("/v1/chat/completions", ("POST",), ChatHandler(services), error_body, stream_error_body),
        route("/generate", ("POST", "PUT"), generate.GenerateHandler(services), *_GENERATE),
        route("/v1/completions", ("POST",), CompletionsHandler(services), error_body, stream_error_body),
        route("/v1/embeddings", ("POST",), EmbeddingsHandler(services), error_body),
        route("/v1/rerank", ("POST", "PUT"), RerankHandler(services), error_body),
        route("/v1/score", ("POST",), ScoreHandler(services), error_body),
        route("/encode", ("POST", "PUT"), EncodeHandler(services), generate.error_body),
        route("/classify", ("POST", "PUT"), EncodeHandler(services), generate.error_body),
        route("/v1/models", ("GET",), ModelsHandler(services), error_body),
        route("/v1/models/{model:path}", ("GET",), ModelHandler(services), error_body),
        route("/health", ("GET",), admin.health),
        route("/health_generate", ("GET",), admin.health),
        route("/ready", ("GET",), admin.alive),
        route("/ping", ("GET",), admin.alive),
        route("/model_info", ("GET",), admin.model_info),
        route("/get_model_info", ("GET",), admin.model_info),
        route("/server_info", ("GET",), admin.server_info),
        route("/get_server_info", ("GET",), admin.server_info),
        route("/abort_request", ("POST",), admin.abort_request),
        route("/flush_cache", ("GET", "POST"), admin.flush_cache),
        route("/v1/loads", ("GET",), loads.loads),
        route("/get_load", ("GET",), loads.load),
        *(route(control.path, control.methods, handler(services, control)) for control in CONTROLS),
        route("/", ("GET",), admin.root),
    ]


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
