"""Gets the real Python API of TensorRT and Torch-TensorRT, without their libraries.

NVIDIA's wheel of the bindings is on PyPI. It holds the real pybind11 module, but not the libnvinfer that it links to.
Linked to empty libraries it imports, and pybind11-stubgen writes stubs of all that it registers. This needs gcc, nm and
readelf. Of Torch-TensorRT only the wheel's Python sources are kept. Both are cached under `.trt-api`, which git
ignores.
"""

import ctypes
import keyword
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".trt-api"
STUBGEN = "pybind11-stubgen==3.0.0"
SLOW_S = 300

HEADER = """from __future__ import annotations
# mypy: ignore-errors
import collections.abc, numpy, typing, typing_extensions
from builtins import bool as _bool
"""
PROTOCOLS = {
    "class IHostMemory:": "__buffer__(self, flags: int) -> memoryview",
    "class Dims:": "__iter__(self) -> typing.Iterator[int]",
}
"""Protocols that a class implements in C, and that no signature shows."""


class NotHere(Exception):
    """This machine cannot get the API. The message says why."""


def tensorrt(version: str) -> Path:
    """Return a folder with `stubs/` (for MYPYPATH), and `package/` and `lib/` to import the bindings from.

    Raise NotHere without a network, a compiler, or a wheel for this Python.
    """
    return _cached(f"tensorrt-{version}", lambda folder: _build_stubs(version, folder))


def torch_tensorrt(version: str) -> Path:
    """Return a folder with the Python sources of Torch-TensorRT in `torch_tensorrt/`. Raise NotHere if there are
    none."""
    return _cached(f"torch_tensorrt-{version}", lambda folder: _unpack_sources(version, folder))


def _cached(name: str, fill: Callable[[Path], None]) -> Path:
    """Return `CACHE`/NAME, filled by `fill` for this Python and this version of the file. It never exists
    half-filled."""
    made_for = f"{sys.version_info[:2]} {Path(__file__).read_text()}"
    folder, half = CACHE / name, CACHE / f"{name}.{os.getpid()}"
    if (folder / "made_for").is_file() and (folder / "made_for").read_text() == made_for:
        return folder
    if platform.system() != "Linux":
        raise NotHere("the wheels are taken apart with Linux's tools")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    try:
        fill(half)
        (half / "made_for").write_text(made_for)
        shutil.rmtree(folder, ignore_errors=True)
        half.rename(folder)
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return folder


def _build_stubs(version: str, folder: Path) -> None:
    _unpack(f"tensorrt_cu13_bindings=={version}", folder / "package")
    package = (folder / "package" / "tensorrt_bindings").rename(folder / "package" / "tensorrt")
    _link_to_nothing(package / "tensorrt.so", folder / "lib")
    tools = _cached(STUBGEN, lambda into: _pip("install", "--no-deps", "--target", into, STUBGEN))
    stubgen = (sys.executable, "-m", "pybind11_stubgen", "--print-invalid-expressions-as-is", "-o", folder / "stubs")
    _command(*stubgen, "tensorrt", LD_LIBRARY_PATH=folder / "lib", PYTHONPATH=f"{folder / 'package'}:{tools}")
    for stub in (folder / "stubs" / "tensorrt").glob("*.pyi"):
        stub.write_text(_repaired(stub.read_text()))


def _unpack_sources(version: str, folder: Path) -> None:
    _unpack(f"torch_tensorrt=={version}", folder)
    for file in folder.rglob("*"):
        if file.is_file() and file.suffix != ".py":
            file.unlink()


def _unpack(requirement: str, folder: Path) -> None:
    _pip("download", "--no-deps", "--only-binary", ":all:", "-d", folder, requirement)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder)
    wheel.unlink()


def _link_to_nothing(module: Path, folder: Path) -> None:
    """Build a library for each libnv* that `module` needs, with every missing function returning NULL."""
    python = ctypes.CDLL(None)  # Python's and libc's own symbols; a versioned one (@GLIBCXX) is the system's
    undefined = re.findall(r" U ([^@\s]+)$", _command("nm", "-Du", module), re.MULTILINE)
    missing = [name for name in undefined if not hasattr(python, name)]
    folder.mkdir()
    source = folder / "empty.c"
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in missing))
    for soname in re.findall(r"NEEDED.*\[(libnv[^]]+)\]", _command("readelf", "-d", module)):
        _command("gcc", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", folder / soname, source)


def _repaired(text: str) -> str:
    """Replace C++ types, and names that conflict with Python, by types that mypy reads."""
    classes = set(re.findall(r"^class (\w+)", text, re.MULTILINE))
    for cpp in set(re.findall(r"\b(?:nvinfer1|nvonnxparser)::[\w:]*\w", text)):  # nvinfer1::IBuilder is Builder here
        name = cpp.rpartition("::")[2]
        known = next((ours for ours in (name, name[1:]) if ours in classes), "typing.Any")
        text = re.sub(rf"\b{cpp}\b", known, text)
    text = re.sub(r"\bdetail::\w+<[^\n]*?>+|\bcapsule\b|[\w.]+\.CapsuleType\b", "typing.Any", text)
    text = text.replace("typing.SupportsInt", "int").replace("typing.SupportsFloat", "float")  # 11's words for 10's
    text = re.sub(r"= <[\w.]+: -?\d+>", "= ...", text)  # the repr of an enum's default
    text = re.sub(r"(?<=[:>|,] )bool\b|(?<=\[)bool\b", "_bool", text)  # the module has a `bool` of its own
    text = re.sub(r"^( *def \w+)\((.*)\)(?: -> (.*))?:$", _definition, text, flags=re.MULTILINE)
    for head, protocol in PROTOCOLS.items():
        text = text.replace(head, f"{head}\n    def {protocol}: ...")
    # Logger.Severity is ILogger.Severity; written down twice it would be two types
    logger = re.compile(r"(^class Logger\(ILogger\):.*?)^    class Severity:.*?(?=^    \S)", re.MULTILINE | re.DOTALL)
    return HEADER + logger.sub(r"\1    Severity = ILogger.Severity\n", text).replace(HEADER.splitlines()[0], "")


def _definition(match: re.Match[str]) -> str:
    """Return a valid def line. pybind11 has parameters named `in`, and required ones after defaults."""
    parameters: list[str] = []
    defaulted = False
    for parameter in re.split(r", (?=[*\w]+(?:: | = |,|$))", match[2]):
        name, colon, rest = parameter.partition(":")
        rest = re.sub(r"^ Dims(?= =|$)", " Dims | collections.abc.Sequence[int]", rest)  # pybind11 converts them
        rest = re.sub(r"^ Weights(?= =|$)", " Weights | numpy.ndarray | None", rest)
        if not colon and name not in ("self", "cls", "*", "/", ""):  # a plain Python function of __init__.py
            colon, rest = ":", " typing.Any"
        defaulted = defaulted or " = " in rest
        default = " = ..." if defaulted and " = " not in rest and not name.startswith("*") else ""
        underscore = "_" if keyword.iskeyword(name) else ""
        parameters.append(f"{name}{underscore}{colon}{rest}{default}")
    return f"{match[1]}({', '.join(parameters)}) -> {match[3] or 'typing.Any'}:"


def _pip(*arguments: object) -> None:
    _command(sys.executable, "-m", "pip", *arguments, "--quiet", "--retries", 1, "--disable-pip-version-check")


def _command(*command: object, **environment: object) -> str:
    """Run `command` and return its output. Raise NotHere with its last line if it fails or does not exist."""
    words = [str(word) for word in command]
    variables = os.environ | {name: str(value) for name, value in environment.items()}
    try:
        done = subprocess.run(words, capture_output=True, text=True, env=variables, timeout=SLOW_S, check=True)
    except subprocess.CalledProcessError as error:
        raise NotHere(f"{' '.join(words[:4])} ...: {(error.stderr.strip() or 'failed').splitlines()[-1]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotHere(str(error)) from error
    return done.stdout
