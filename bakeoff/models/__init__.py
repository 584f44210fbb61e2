"""The models that Bakeoff knows, by name. A model's file is imported when its name is used."""

from __future__ import annotations

import glob
import importlib
import shlex
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bakeoff.records.errors import BakeoffError, UsageError, first_line, unknown
from bakeoff.records.package import PACKAGE
from bakeoff.records.plug_ins import plug_ins
from bakeoff.records.schema import GENERATE, GENERATION

if TYPE_CHECKING:
    from bakeoff.models.base import Family
    from bakeoff.models.user import UserCode

TABLE: dict[str, str] = {
    "mlp": "bakeoff.models.templates:MLP",
    "conv": "bakeoff.models.templates:CONV",
    "transformer": "bakeoff.models.templates:TRANSFORMER",
    "attention": "bakeoff.models.templates:ATTENTION",
    "transformer_lm": "bakeoff.models.transformer_lm:TransformerLM",
    "matmul_chain": "bakeoff.models.templates:MATMUL_CHAIN",
    "attention_block": "bakeoff.models.templates:ATTENTION_BLOCK",
    "mixed_ops": "bakeoff.models.templates:MIXED_OPS",
    "rope": "bakeoff.models.templates:ROPE",
    "fp8_transformer": "bakeoff.models.fp8_transformer:Fp8Transformer",
    "fused_add_relu_mul": "bakeoff.models.templates:FUSED_ADD_RELU_MUL",
    "tma_copy": "bakeoff.models.templates:TMA_COPY",
    "matmul_fp16": "bakeoff.models.templates:MATMUL_FP16",
    "matmul_fp8": "bakeoff.models.templates:MATMUL_FP8",
}
DEFAULT = ("mlp", "conv", "transformer")

ENTRY_POINTS = "bakeoff.models"
"""Other distributions add a family through this entry-point group, as NAME = "module:Class"."""


@dataclass(frozen=True)
class Source:
    family: str  # "module:Class", whose constructor takes what follows the colon of the name
    form: str = ""  # how such a name is written; empty: nobody writes one
    description: str = ""


SOURCES = {
    "diffusers": Source(
        "bakeoff.models.diffusers:Diffusers",
        "diffusers:FOLDER",
        "a model of diffusers, such as a pipeline's unet; its dimensions are batch, size, seq",
    ),
    "graphnet": Source(
        "bakeoff.models.graphnet:GraphNet",
        "graphnet:FOLDER",
        "a graph of GraphNet, whose model.py runs, with tensors by its statistics; it has no dimensions",
    ),
    "hf": Source(
        "bakeoff.models.huggingface:HuggingFace",
        "hf:FOLDER or hf:ORG/NAME",
        "a Hugging Face model; its dimensions are batch, seq, size or samples",
    ),
    "live": Source("bakeoff.models.live_model:LiveModel"),
    "onnx": Source(
        "bakeoff.models.onnx_file:OnnxFile",
        "onnx:FILE",
        "a model for the backends that take ONNX; its dimensions are the axes that it leaves open",
    ),
    "pt2": Source(
        "bakeoff.models.exported_program:ExportedFile",
        "pt2:FILE",
        "a program that torch.export.save wrote; its dimensions are the axes that it leaves open",
    ),
    "timm": Source(
        "bakeoff.models.timm:Timm",
        "timm:NAME",
        "an image model of timm, with random weights; its dimensions are batch and size",
    ),
    "torchvision": Source(
        "bakeoff.models.torchvision:Torchvision",
        "torchvision:NAME",
        "a model of torchvision, with random weights; batch, size, for videos frames",
    ),
}
"""The sources by the prefix of their names."""


def written_sources() -> list[Source]:
    return [source for source in SOURCES.values() if source.form]


def names() -> list[str]:
    """Return every family: the table's, then those of other distributions in alphabetical order."""
    return [*TABLE, *sorted(plug_ins(ENTRY_POINTS).keys() - TABLE.keys())]


def find(name: str) -> Family:
    """Return the family for a row of the table, a user's own model, or a source such as `hf:FOLDER`. Raise UsageError
    for what does not exist, and BakeoffError if another distribution's family does not load."""
    if name in TABLE:
        return _family(TABLE[name])
    prefix, colon, source = name.partition(":")
    if colon and prefix in SOURCES:
        return _family(SOURCES[prefix].family, _in_presets(source))
    path, colon, factory = name.rpartition(":")
    file = path if colon else name
    if file.endswith(".py"):  # before the entry points, whose files would count as what the model reads
        return _of_file(_in_presets(file), factory if colon else "")
    if target := plug_ins(ENTRY_POINTS).get(name):
        try:
            return _family(target)
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise BakeoffError(f"model '{name}' ({target}) does not load: {reason}") from error
    if factory.isidentifier() and path and all(part.isidentifier() for part in path.split(".")):
        from bakeoff.models.importing import can_import
        from bakeoff.models.user import UserModel

        if "." in path or can_import(path):
            return UserModel(path, factory)
    if Path(name).exists() and (meant := _meant_by(Path(name), name)):
        raise UsageError(f"unknown model '{name}': {meant}")
    own = ("path/to/file.py:factory", "path/to/file.py with a class Model", "package.module:factory")
    forms = [*own, *(source.form for source in written_sources())]
    raise unknown("model", name, names(), f"or {', '.join(forms)}")


def expanded(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names, with those of matching files in place of a pattern such as `DIR/*.py`, and what was left out.
    Raise UsageError for a pattern that matches no file with a model."""
    whole: list[str] = []
    left_out: list[str] = []
    for name in names:
        if not name.endswith(".py") or Path(name).exists() or not glob.has_magic(name):
            whole.append(name)
            continue
        found = [_model_in(file, left_out) for file in sorted(glob.glob(name, recursive=True))]
        if not any(found):
            raise UsageError(f"--model {name}: no file there has {OWN_FORMS}")
        whole += filter(None, found)
    return whole, left_out


OWN_FORMS = "a function factory, or a class Model with get_inputs and get_init_inputs"


def _model_in(file: str, left_out: list[str]) -> str:
    from bakeoff.models.model_file import has_form, require_whole_form
    from bakeoff.models.source_code import functions_of, parse

    try:
        if has_form(Path(file)):
            return file
        if "factory" in functions_of(parse(Path(file))):
            return f"{file}:factory"
        require_whole_form(Path(file))
        left_out.append(f"{file} was left out: it has none of {OWN_FORMS}")
    except UsageError as error:
        left_out.append(f"{file} was left out: {error}")
    return ""


def _of_file(file: str, factory: str) -> Family:
    from bakeoff.models.model_file import FORM, ModelFile, has_form, require_whole_form
    from bakeoff.models.user import UserModel

    is_alone = (not factory or factory in FORM) and Path(file).is_file() and has_form(Path(file))
    if is_alone and not factory:
        return ModelFile(file)
    if is_alone:
        raise UsageError(f"{file} has a class Model and what makes its inputs: write --model {file}, without {factory}")
    if factory:
        return UserModel(file, factory)
    require_whole_form(Path(file))
    _code_of(f"{file}:{option_for(file).rpartition(':')[2]}")  # says it where there is no file, or none in it
    raise UsageError(f"model '{file}' names a file but no factory: write {option_for(file)}")


def find_for(name: str, task: str, inputs: str = "") -> Family:
    """Return the family with the dimensions that it has for `task`, or with those of a file of inputs. Raise UsageError
    where it cannot do the task, or for a file that holds no inputs."""
    family = find(name)
    if task not in (GENERATE, *GENERATION):
        if not inputs:
            return family
        from bakeoff.models.inputs_file import WithInputs

        return WithInputs(family, inputs)
    if inputs:
        raise UsageError("--inputs: text is generated from prompts of the model's own tokens, so leave it out")
    from bakeoff.models.generation import Generating

    return Generating(family)


def find_evaluate(name: str) -> Callable[..., object]:
    """Return the function at `path/to/file.py:FUNCTION`, `package.module:FUNCTION` or `live:NAME`. It is imported.
    Raise UsageError if there is none."""
    if name.startswith(LIVE):
        from bakeoff.models.live_model import read_evaluate

        evaluate: Callable[..., object] = read_evaluate()
        return evaluate
    return _code_of(name).imported()


def resolve_evaluate(name: str) -> str:
    """Return the name with the whole path of its file. Raise UsageError if the file has no such function."""
    if name.startswith(LIVE):
        return name
    code = _code_of(name)
    return f"{code.module or code.file}:{code.function}"


def _code_of(name: str) -> UserCode:
    from bakeoff.models.user import UserCode

    source, colon, function = name.rpartition(":")
    if not colon or not function.isidentifier():
        raise UsageError(f"--evaluate {name}: write FILE.py:FUNCTION or package.module:FUNCTION")
    return UserCode(source, function)


LIVE = "live:"


def option_for(text: str) -> str:
    """Return the option that names `text` as a model. Return an empty string where it looks like no model."""
    if text.endswith(".py"):
        from bakeoff.models.model_file import has_form
        from bakeoff.models.source_code import likely_factory

        is_alone = Path(text).is_file() and has_form(Path(text))
        return f"--model {text}" if is_alone else f"--model {text}:{likely_factory(Path(text))}"
    source = text if ":" in text or text in names() else _source_of(Path(text), text)
    return f"--model {source}" if source else ""


def _source_of(path: Path, name: str) -> str:
    """Return how a file or folder is named as a model, or an empty string if it needs code, or does not exist."""
    config = path / "config.json"
    if config.is_file():
        is_diffusers = b'"_class_name"' in config.read_bytes()
        return f"{'diffusers' if is_diffusers else 'hf'}:{name}"
    if path.is_file() and path.suffix == ".onnx":
        return f"onnx:{name}"
    if path.is_file() and (path.suffix == ".pt2" or _holds(path, "models/model.json")):
        return f"pt2:{name}"
    return ""


WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")
FACTORY = "a factory, --model FILE.py:factory, with def factory(batch: int = 1)"


def _meant_by(path: Path, name: str) -> str:
    """Return what to write for a file or folder that exists, or an empty string if it is no model."""
    if source := _source_of(path, name):
        return f"did you mean {source}?"
    if (path / "weight_meta.py").is_file():
        return f"did you mean graphnet:{name}?"
    if any(path.glob("*.py")):
        return f"it is a folder: write --model {shlex.quote(f'{path}/*.py')}"
    if not path.is_file():
        return ""
    if _holds(path, "code/"):
        returned = f"torch.jit.load({name!r}), torch.randn(batch, ...)"
        return f"a file of TorchScript needs {FACTORY} that returns {returned}"
    if path.suffix in WEIGHTS:
        return f"weights without code need {FACTORY} that returns the module with these weights, and example inputs"
    return ""


def _holds(path: Path, place: str) -> bool:
    """Return True for an archive of torch with such a file or folder, below the folder that all of it lies in."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.partition("/")[2].startswith(place) for name in archive.namelist())


def _in_presets(path: str) -> str:
    is_preset = path.startswith("presets/") and not Path(path).exists()
    return str(PACKAGE / path) if is_preset and (PACKAGE / path).exists() else path


def _family(path: str, *arguments: str) -> Family:
    module, _, attribute = path.partition(":")
    value: Any = getattr(importlib.import_module(module), attribute)
    family: Family = value(*arguments) if isinstance(value, type) else value
    return family
