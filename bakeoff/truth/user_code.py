"""What the user's own code can tell a model: its source files, what they read, its variables, and objects' attributes.

Nothing that differs from process to process may be in it, such as addresses. What is unknown is told by its type alone.
"""

import ast
import contextlib
import csv
import functools
import hashlib
import importlib.util
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

from bakeoff.records.package import PACKAGE
from bakeoff.truth.tensor_content import content

PLAIN = (bool, int, float, complex, str, bytes, type(None), range, slice)
VARYING = frozenset({"_original_object_hash", "_use_default_values"})
"""Attributes that follow Python's hashes of strings, which differ in each process: transformers keeps a hash in each
GenerationConfig, and diffusers the names of what was not given, in the order of a set."""

STANDARD = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib")})
_TORCH = str(Path(torch.__file__).parent)
LIBRARIES = (*STANDARD, *map(sysconfig.get_path, ("purelib", "platlib")), str(Path(_TORCH, "serialization.py")))
"""Folders of what reads or writes for the user's own code, with one file of torch."""

DEPTH = 8
"""What lies deeper in an object is told by its type alone."""


INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Names of the folders that package managers install into, also those of another environment that this one sees."""


def is_users(path: Path) -> bool:
    """Return True for a source file that neither a package manager has installed nor Bakeoff has brought."""
    if path.suffix != ".py" or INSTALLED.intersection(path.parts):
        return False
    return not any(path.is_relative_to(folder) for folder in _brought()) and not _is_recorded(path)


def _is_recorded(path: Path) -> bool:
    """Return True for what was installed into a folder of any name, as `pip install --target` does."""
    return any(path in _recorded_in(folder) for folder in path.parents)


@functools.cache
def _recorded_in(folder: Path) -> frozenset[Path]:
    """Return the files of the distributions that were installed into this folder, by their lists."""
    found: set[Path] = set()
    for record in folder.glob("*.dist-info/RECORD"):
        with contextlib.suppress(OSError, UnicodeDecodeError):  # no list: the files count as the user's
            rows = csv.reader(record.read_text(encoding="utf-8").splitlines())
            found.update(folder / row[0] for row in rows if row)
    return frozenset(found)


@functools.cache
def _brought() -> tuple[Path, ...]:
    return (*(Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib")), PACKAGE)


@functools.cache
def _is_users_file(file: str) -> bool:
    folder, name = os.path.split(file)
    path = Path(_resolved(folder), name)
    return is_users(path.resolve() if path.is_symlink() else path)


@functools.cache
def _resolved(folder: str) -> Path:
    """Return the folder without links. A process has thousands of modules in some hundred folders."""
    return Path(folder).resolve()


_defining_models: set[str] = set()


def count_as_users(module: torch.nn.Module) -> None:
    """Have the code of the file that defines this model's class count as the user's own, wherever it was installed."""
    file = getattr(sys.modules.get(type(module).__module__), "__file__", None) or ""
    brought = (*_brought(), Path(torch.__file__).parent)
    if file and not any(Path(file).resolve().is_relative_to(folder) for folder in brought):
        _defining_models.add(file)


def is_users_file(file: str) -> bool:
    return file in _defining_models or _is_users_file(file)


def is_user_call(frame: types.FrameType | None, through: tuple[str, ...]) -> bool:
    """Return True if the user's own code is the first that is found below, going through these folders but torch's."""
    while frame is not None and not is_users_file(frame.f_code.co_filename):
        file = frame.f_code.co_filename
        is_torchs = file.startswith(_TORCH) and file not in through
        if is_torchs or not file.startswith((*through, "<")):
            return False
        frame = frame.f_back
    return frame is not None


def user_modules() -> list[types.ModuleType]:
    """Return the modules of the user's own files, by their names. Others are left out first: there are thousands."""
    own = {
        name: module
        for name, module in list(sys.modules.items())
        if isinstance(module, types.ModuleType) and (file := getattr(module, "__file__", None)) and _is_users_file(file)
    }
    return [own[name] for name in sorted(own)]


def user_sources() -> set[Path]:
    """Return the files of the user's modules, and of what these import later, such as inside of `forward`."""
    pending = [(Path(module.__file__ or "").resolve(), module.__package__ or "") for module in user_modules()]
    found = {path for path, _ in pending}
    while pending:
        for path, package in _imports(*pending.pop()):
            if path not in found:
                found.add(path)
                pending.append((path, package))
    return found


def _imports(path: Path, package: str) -> Iterator[tuple[Path, str]]:
    """Return the user's own files, each with its package, that the import statements of a file name."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            joint = "" if base.endswith(".") else "."
            names = [base, *(f"{base}{joint}{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            with contextlib.suppress(ImportError, ValueError, AttributeError):
                file, of = _found(importlib.util.resolve_name(name, package))
                if file and is_users(file):
                    yield file, of


@functools.cache
def _found(name: str) -> tuple[Path | None, str]:
    """Return the file of a module and the package that it belongs to. Nothing is imported for it."""
    parent = name.rpartition(".")[0]
    if parent and parent not in sys.modules:
        return None, ""  # to find it would run the code of its package
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.origin:
        return None, ""
    return Path(spec.origin).resolve(), spec.parent or ""


PSEUDO = frozenset({"proc", "sys", "dev", "etc", "run"})
OF_USERS = frozenset({("dev", "shm"), ("run", "media")})
"""Folders of users that lie in those of the system."""

WEIGHTS = frozenset({".safetensors", ".pt", ".pt2", ".pth", ".bin", ".ckpt", ".gguf"})
"""The endings of files with weights."""

Listener = Callable[[str, tuple[Any, ...]], None]

_listeners: list[Listener] = []


@contextlib.contextmanager
def hearing(listener: Listener) -> Iterator[None]:
    """Call a function for each audit event in the block (PEP 578). The hook stays in the process, idle."""
    _add_hook()
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@functools.cache
def _add_hook() -> None:
    sys.addaudithook(_tell_listeners)


def _tell_listeners(event: str, arguments: tuple[Any, ...], listeners: list[Listener] = _listeners) -> None:
    """Call the listeners. While the interpreter ends, the names of this module are gone, and events go on."""
    for listener in listeners:
        listener(event, arguments)


@contextlib.contextmanager
def noting_reads() -> Iterator[set[str]]:
    """Yield the paths of the files that Python code opens for reading in the block, such as a JSON with settings."""
    paths: set[str] = set()

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and (path := opened(arguments)) and not path[1]:
            paths.add(path[0])

    with hearing(note):
        yield paths


def opened(arguments: tuple[Any, ...]) -> tuple[str, bool] | None:
    """Return the path that an event `open` tells of, and whether it is opened for writing. None is for a descriptor."""
    path, mode, flags = arguments
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    writes = bool(set(mode) & set("wax+")) if mode else bool(flags & (os.O_WRONLY | os.O_RDWR))
    return os.path.abspath(os.fsdecode(path)), writes


def users_data(paths: Iterable[str]) -> list[Path]:
    """Return those of the files read that are neither code nor the system's, nor brought by a package or Bakeoff."""
    return sorted(path for path in {Path(path).resolve() for path in paths} if _is_users_data(path))


def weights_beside(files: Iterable[Path]) -> list[Path]:
    """Return the weights beside a `config.json` among these files. Python does not see how safetensors opens them."""
    folders = {path.parent for path in files if path.name == "config.json"}
    return sorted(path for folder in folders for path in folder.glob("*.safetensors"))


def weights_named_in(sources: Iterable[Path]) -> list[Path]:
    """Return the weights beside source files that have their names in them, such as those that torch.jit.load opens."""
    found = set()
    for source in sources:
        text = source.read_text(encoding="utf-8", errors="replace")
        beside = (path for path in source.parent.iterdir() if path.suffix in WEIGHTS)
        found |= {path for path in beside if path.name in text and path.is_file()}
    return sorted(found)


def _is_users_data(path: Path) -> bool:
    try:
        return may_be_users_data(path) and path.is_file()
    except OSError:
        return False


def may_be_users_data(path: Path) -> bool:
    """Return True unless a file is code or the system's, or was brought by a package or Bakeoff."""
    is_code = path.suffix in (".py", ".pyc", ".so")
    is_pseudo = bool(PSEUDO.intersection(path.parts[1:2])) and path.parts[1:3] not in OF_USERS
    if is_code or is_pseudo or INSTALLED.intersection(path.parts):
        return False
    return not (any(path.is_relative_to(folder) for folder in _brought()) or _is_recorded(path))


def described_variables() -> Iterable[str]:
    """Return the values of the variables of the user's modules, and of the classes that these define."""
    for module in user_modules():
        for name, value in sorted(vars(module).items()):
            if name.startswith("__") or isinstance(value, types.ModuleType | types.FunctionType):
                continue
            if isinstance(value, type):
                if value.__module__ == module.__name__:
                    settings = (*PLAIN, tuple, list, dict, torch.Tensor, np.ndarray)
                    own = {key: part for key, part in vars(value).items() if not key.startswith("__")}
                    attributes = {key: part for key, part in own.items() if isinstance(part, settings)}
                    yield f"{name} {described(attributes)}\n"
            else:
                yield f"{name} {described(value)}\n"


def described_attributes(part: Any) -> str:
    """Return the attributes of a part of a model. Its parameters, buffers and parts are told elsewhere."""
    registered = ("_parameters", "_buffers", "_modules")
    return described({key: value for key, value in vars(part).items() if key not in registered})


def described(value: Any, depth: int = DEPTH) -> str:
    """Return a text that is equal for equal values, in each process."""
    if isinstance(value, (*PLAIN, PurePath, torch.dtype, torch.device)):
        return repr(value)
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, torch.Tensor):
        try:
            return content(value).hex()
        except (RuntimeError, NotImplementedError, KeyError):  # no storage, such as on the device meta
            return f"{value.dtype} {tuple(value.shape)}"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if depth == 0 or isinstance(value, types.GenericAlias | types.ModuleType | torch.nn.Module):
        return kind

    def inside(*values: Any) -> str:
        return f"{kind}({', '.join(described(part, depth - 1) for part in values)})"

    if isinstance(value, Mapping):
        items = [(key, part) for key, part in value.items() if not (isinstance(key, str) and key in VARYING)]
        pairs = sorted((described(key, depth - 1), described(part, depth - 1)) for key, part in items)
        return f"{kind}({pairs})"
    if isinstance(value, tuple | list):
        return inside(*value)
    if isinstance(value, AbstractSet):
        return f"{kind}({sorted(described(part, depth - 1) for part in value)})"
    if isinstance(value, types.FunctionType):
        cells = [part for cell in value.__closure__ or () for part in _held(cell)]
        code = value.__code__
        constants = [constant for constant in code.co_consts if isinstance(constant, PLAIN)]
        return inside(code.co_qualname, code.co_code, constants, code.co_names, value.__defaults__, *cells)
    if isinstance(value, types.MethodType):
        return inside(value.__func__, value.__self__)
    if isinstance(value, functools.partial):
        return inside(value.func, value.args, value.keywords)
    if kind == "numpy.ndarray" and not value.dtype.hasobject:
        return f"{kind} {value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(name := getattr(value, "__name__", None), str):  # a function that is not written in Python
        return f"{kind} {name}"
    if kind.startswith("torch.") and not kind.startswith("torch.distributions."):
        return kind  # its objects hold counters and addresses
    return inside(object.__getstate__(value))  # with what lies in its slots


def _held(cell: types.CellType) -> Iterator[Any]:
    with contextlib.suppress(ValueError):  # a variable that has no value yet
        yield cell.cell_contents
