"""What a backend says about running without Bakeoff: how its artefact is loaded, and how a script builds a model."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

PORTABLE = "It also loads on other machines. The latency is the one of the machine below."
COMPILED_HERE = "It is compiled for the processor below: build it again for another kind."


class Threads(StrEnum):
    """What threads may do with a loaded artefact, in words."""

    ANY = "any number of threads may call it at the same time"
    TURNS = "any thread may call it, and calls wait for each other"
    ONE = "only the thread that loaded it may call it"


Names = tuple[Sequence[str], Sequence[str]]
"""The names of the inputs and of the outputs."""


@dataclass(frozen=True)
class TritonBackend:
    """How Triton Inference Server runs an artefact."""

    name: str
    """The server's own backend."""
    names: Callable[[Path], Names] | None = None
    """Reads the names from the artefact. None stands for `INPUT__0` and so on."""
    threads: str = ""
    """The parameter with the number of an instance's threads."""
    is_script: bool = False
    """True if a script `model.py` beside the artefact loads it."""


@dataclass(frozen=True)
class CppRuntime:
    """How a program in C++ loads an artefact, and where CMake finds the library."""

    template: str
    """The template, in `scripts/cpp` of the room `shipping`, that defines the class `Model`."""
    variable: str
    """The variable of CMake that says where the library is."""
    find: str
    """A line of Python that prints its value for the library that is installed."""
    needs_torch: bool = False
    """True if it takes every type that torch has. Otherwise tensors have types of C++."""


@dataclass(frozen=True)
class Runtime:
    """What it takes to load a backend's artefact on one kind of device."""

    files: tuple[str, ...]
    """The names that the artefact may have. The first one that is there is loaded, and the others are left out."""
    libraries: tuple[str, ...]
    """The distributions to install."""
    imports: tuple[str, ...] = ()
    """The modules that it needs, which are imported before it is loaded."""
    loader: str = ""
    """The function that loads it, as `file:name` in `bakeoff/backends/runtime`. Of a plug-in, as `module:name`."""
    binds_outputs: bool = False
    """True if it writes its outputs into memory of one size that it is given."""
    threads: Threads = Threads.ANY
    """Which threads may call it once it is loaded by `bakeoff.load`."""
    threads_of_modes: Mapping[str, Threads] = field(default_factory=dict)
    """The same for modes that differ, by their names. Calls of a mode that captures them in a graph take turns."""
    triton: TritonBackend | None = None
    """How Triton Inference Server runs it, or None if it cannot."""
    cpp: CppRuntime | None = None
    """How a program in C++ loads it, or None if there is none."""
    note: str = PORTABLE
    """Where it loads, in a sentence for the reader."""
    holds_quantised: bool = False
    """True if the artefact of a quantised model runs as it is."""
    exports_anew: bool = False
    """True if no artefact can be loaded elsewhere. The model is then exported as a program of torch.export, into the
    first of `files`, and compiled when it is loaded."""
    compiles_at_load: bool = False
    """True if `runtime/torch_programs.py` compiles it when it is loaded. An export then brings what that leaves."""
    pickles: bool = False
    """True if the model itself is pickled, for `bakeoff reproduce` alone."""


@dataclass(frozen=True)
class ScriptPart:
    """How a script without Bakeoff builds a module. `bakeoff blame` writes one of what a library does not build."""

    lines: str
    """The lines of Python that build `model` for the tensors `inputs`, and define `call`, which calls it with them."""
    imports: tuple[str, ...] = ()
    """The lines of Python that import what they need besides torch."""
    captures: bool = False
    """True if `call` is captured in a CUDA graph."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables to set before anything is imported."""


def spelled(arguments: Mapping[str, object]) -> str:
    """Return such as `, mode="x", level=3`, which further arguments of a call are in a script."""
    return "".join(f", {name}={literal(value)}" for name, value in arguments.items())


def literal(value: object) -> str:
    """Return `value` as Python source. Reports come from anywhere, and none of their text may become code."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(key)}: {literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    return json.dumps(value) if isinstance(value, str) else repr(value)
