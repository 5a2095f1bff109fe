"""What SGLang's own server and this gateway's engine have in common: arguments, scripted tokens, environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from ..engine.launch import arguments as args_of
from ..engine.launch.host import CPU, QUIET, environment, warnings_ignored
from ..engine.scripted.scheduler import SchedulerScript

TEXT: Final = (
    "A shard is a part of a whole that can be carried by itself: it takes what comes to it, answers, and lets the "
    "others do the same. What is measured here is the way of a word from an engine to the one who asked for it. "
)
"""What a simulated model says, over and over, and what prompts are made of."""
CONTEXT_LENGTH: Final = 1 << 22
"""Nothing is computed over it, so that any prompt fits."""


@contextmanager
def sglang_environment(*, grouped: bool, codec: str, rust: bool = False) -> Iterator[bool]:
    """For the whole life of an engine on this machine; yields whether it runs on plain CPU."""
    from ..engine.demo.platform import accelerator_present

    wire = {
        "SGLANG_BATCH_TOKENIZER_OUTPUTS": "1" if grouped else "0",
        "SGLANG_USE_PICKLE_IPC": "1" if codec == "pickle" else "0",
        "SGLANG_RUST_SERVER": "1" if rust else "0",
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
    }
    with ExitStack() as stack:
        stack.enter_context(warnings_ignored(True))
        stack.enter_context(environment({**QUIET, **wire}))
        on_cpu = not accelerator_present()
        stack.enter_context(environment(CPU if on_cpu else {}))
        yield on_cpu


def engine_argv(argv: Sequence[str], *, simulated: bool = True) -> list[str]:
    """SGLang's arguments with the demo model, if none is named; simulated, with a context that any prompt fits in."""
    from ..engine.demo.model import ensure_demo_model

    if not args_of.names_model(argv):
        argv = list(args_of.with_demo_model(argv, ensure_demo_model()))
    context = ["--context-length", str(CONTEXT_LENGTH)] if simulated else []
    return [*argv, *context, "--log-level", "error"]


def script_for(argv: Sequence[str], pace_path: str) -> SchedulerScript:
    """A scheduler that says TEXT in the tokens of the model in `argv`."""
    return SchedulerScript(pace_path, tuple(model_tokenizer(argv).encode(TEXT, add_special_tokens=False).ids))


def model_tokenizer(argv: Sequence[str]) -> Any:
    """The tokenizers.Tokenizer of the model in `argv`, which must have been completed by `engine_argv`."""
    from tokenizers import Tokenizer

    directory = argv[max(i for i, argument in enumerate(argv) if argument == "--model-path") + 1]
    return Tokenizer.from_file(str(Path(directory, "tokenizer.json")))
