"""What a request for embeddings must hold to before it is sent, beside what every kind of request must."""

from __future__ import annotations

from ...contract import EngineContract
from ...errors import RequestRejected
from .limits import check_booleans, check_common
from .request import EmbeddingRequest
from .routing import follows_rooms


def check_embedding_request(request: EmbeddingRequest, contract: EngineContract) -> None:
    """What concerns the whole request; raises RequestRejected."""
    if contract.model.is_generation:
        raise RequestRejected(
            "This model does not appear to be an embedding model by default. "
            "Please add `--is-embedding` when launching the server or try another model."
        )
    if follows_rooms(contract):
        raise RequestRejected(
            "--load-balance-method follow_bootstrap_room sends requests where their bootstrap room tells, "
            "which a request for embeddings doesn't have."
        )
    check_common(request, contract)
    check_booleans(request, "is_cross_encoder_request", "return_pooled_hidden_states")
    if request.dimensions is not None:
        _check_dimensions(request.dimensions, contract)


def _check_dimensions(dimensions: int, contract: EngineContract) -> None:
    """SGLang's _validate_for_matryoshka_dim."""
    model = contract.model
    problem = ""
    if type(dimensions) is not int:
        problem = f"dimensions must be an integer, got {dimensions!r}."
    elif not model.is_matryoshka:
        problem = (
            f"Model '{model.model_path}' does not support matryoshka representation, "
            "changing output dimensions will lead to poor results."
        )
    elif dimensions < 1:
        problem = "Requested dimensions must be greater than 0"
    elif model.matryoshka_dimensions and dimensions not in model.matryoshka_dimensions:
        problem = (
            f"Model '{model.model_path}' only supports {list(model.matryoshka_dimensions)} matryoshka dimensions, "
            "using other output dimensions will lead to poor results."
        )
    elif dimensions > model.hidden_size:
        problem = f"Provided dimensions are greater than max embedding dimension: {model.hidden_size}"
    if problem:
        raise RequestRejected(problem, param="dimensions")
