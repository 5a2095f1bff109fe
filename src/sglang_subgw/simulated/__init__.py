"""A simulated engine: SGLang's side of the wire with real libzmq, scripted answers and faults, without sglang."""

from .engine import SimulatedEngine
from .faults import Faults
from .process import SimulatedEngineProcess
from .script import Script, echo, fixed_text, logprob_of
from .tokenizer import ByteTokenizer

__all__ = [
    "ByteTokenizer",
    "Faults",
    "Script",
    "SimulatedEngine",
    "SimulatedEngineProcess",
    "echo",
    "fixed_text",
    "logprob_of",
]
