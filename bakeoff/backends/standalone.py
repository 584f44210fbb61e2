"""What a backend says about running without Bakeoff: how a script does what it does, and how its artefact is loaded.

`bakeoff reproduce` and `bakeoff export` write such scripts around the template of the backend.
"""

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
    """The lines of Python that import what the script needs besides torch."""
    loader: str = ""
    """The function, as `module:name`, with which `bakeoff.load` loads it: see `bakeoff.backends.loaded.contract`."""
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
    first of `files`, and the script compiles it."""

    @property
    def uses_torch(self) -> bool:
        return "torch" in self.libraries


@dataclass(frozen=True)
class ScriptPart:
    """The part of a script that does what a backend does for one cell."""

    template: str
    """Source of a Jinja template, which defines `bind(index)`: it returns the call with that input set.

    It builds from `model` and `input_sets`, or loads the file `artifact_path` if `artifact` is set. If it defines
    `compiled` instead, a line `{% include "bind.py.jinja" %}` makes `bind` of that.
    """
    imports: tuple[str, ...] = ()
    """The lines of Python that import what building needs besides torch."""
    flat: bool = False
    """True if what is built takes flat tensors, whatever arguments the model takes."""
    takes_list: bool = False
    """True if it takes these tensors in one list."""
    is_lazy: bool = False
    """True if it compiles in its first calls."""
    binds_outputs: bool = False
    """True if calls write into tensors that the script has made, and `bind` uses functools.partial."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables to set before anything is imported."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """What only this template reads, by name."""


def template(name: str) -> str:
    """Return the source of one of our templates."""
    return (Path(__file__).with_name("templates") / f"{name}.py.jinja").read_text(encoding="utf-8")
