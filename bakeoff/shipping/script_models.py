"""The part of a reproducing script that makes the model and its inputs, for each source of models."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bakeoff import models
from bakeoff.models.base import Family
from bakeoff.models.diffusers import TIME_STEPS, Diffusers
from bakeoff.models.exported_program import ExportedFile
from bakeoff.models.huggingface import HuggingFace
from bakeoff.models.timm import Timm
from bakeoff.models.torchvision import DETECTION, Torchvision
from bakeoff.models.user import MAX_CALLS, UserModel
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Cell

Sizes = Mapping[str, int | str]


@dataclass(frozen=True)
class ModelPart:
    """The part of a script for a model. A `structured` input set is (args, kwargs); others are tuples of one tensor."""

    template: str
    imports: Sequence[str]
    structured: bool
    facts: dict[str, Any]


TRANSFORMER_IMPORTS = ("from torch import Tensor, nn", "from torch.nn import functional")
PYTREE = "from torch.utils import _pytree as pytree"
USER_IMPORTS = (
    "import sys",
    "from collections.abc import Mapping",
    "from itertools import islice",
    "from typing import Any",
    PYTREE,
)

TEMPLATES = ("mlp", "conv", "transformer")
"""Our models with a template of their own in scripts/models."""

SOURCES = ("hf", "timm", "torchvision", "diffusers", "pt2")
"""Sources of models with a template."""

COVERED = f"{', '.join(TEMPLATES)}, for your own, and for those of {', '.join(f'{source}:' for source in SOURCES)}"


def is_covered(model: str) -> bool:
    """Return whether there are scripts for models of this kind."""
    source, colon, _ = model.partition(":")
    if colon and source in models.CLASSES:
        return source in SOURCES
    return model in TEMPLATES or model not in models.names()


def model_part(cell: Cell, family: Family, dimensions: Sizes) -> ModelPart:
    """Return the part for a model. Raise UsageError, with the reason, if it takes inputs that no template makes."""
    match family:
        case UserModel():
            facts: dict[str, Any] = {
                "folder": str(family.folder),
                "path": str(family.file),
                "module": family.module,
                "factory": family.function,
                "arguments": {**dimensions, **({"seed": cell.seed} if family.takes_seed else {})},
                "max_calls": MAX_CALLS,
                "input_sets_source": _source_of("models/input_sets.py"),
            }
            importing = "import importlib" if family.module else "import importlib.util"
            return ModelPart("user", (importing, *USER_IMPORTS), structured=True, facts=facts)
        case HuggingFace():
            return _of_hugging_face(family, dimensions)
        case Diffusers():
            facts = {
                **family.facts,
                "time_steps": TIME_STEPS,
                "folder": str(family.folder.resolve()),
                "has_weights": family.has_weights,
            }
            return ModelPart("diffusers", ("import diffusers",), structured=True, facts=facts)
        case Timm():
            size = int(dimensions["size"])
            facts = {
                "made": {"img_size": size} if family.is_resized(size) else {},
                "shape": family.shape(dimensions),
                "architecture": family.architecture,
                "has_weights": False,
            }
            return ModelPart("timm", ("import timm",), structured=False, facts=facts)
        case Torchvision():
            if family.kind == DETECTION:
                raise _uncovered(family, "detectors take a list of images")
            facts = {
                "made": family.arguments(dimensions),
                "shapes": family.shapes(dimensions),
                "architecture": family.architecture,
                "has_weights": False,
            }
            return ModelPart("torchvision", ("import torchvision",), structured=True, facts=facts)
        case ExportedFile():
            if dimensions != family.resolve({}):
                raise _uncovered(family, "there is one for the sizes that it was exported with")
            moving = ("from torch.export.passes import move_to_device_pass",) if cell.device.is_cuda else ()
            facts = {"path": str(family.path.resolve()), "input_sets_source": _source_of("models/input_sets.py")}
            return ModelPart("pt2", ("from typing import Any", PYTREE, *moving), structured=True, facts=facts)
    if family.name == "transformer":
        facts = {"layers_source": _source_of("models/encoder.py")}
        return ModelPart("transformer", TRANSFORMER_IMPORTS, structured=False, facts=facts)
    return ModelPart(family.name, ("from torch import nn",), structured=False, facts={})


def _of_hugging_face(family: HuggingFace, dimensions: Sizes) -> ModelPart:
    if not family.architecture.isidentifier():
        raise UsageError(
            f"{family.name}: config.json names the architecture {family.architecture!r}, which is no class"
        )
    if not family.is_of_one_kind:
        raise _uncovered(family, "there is one for models of text, of images or of sound")
    if "size" in dimensions and dimensions["size"] != family.dimensions["size"].default:
        raise _uncovered(family, "there is one for images of the size in its config.json")
    inspecting = ("import inspect",) if "seq" in dimensions else ()
    facts = {
        "folder": family.commit.repository if family.commit else str(family.folder.resolve()),
        "revision": family.commit.sha if family.commit else "",
        "architecture": family.architecture,
        "has_weights": family.has_weights,
    }
    return ModelPart("huggingface", (*inspecting, "import transformers"), structured=True, facts=facts)


def _uncovered(family: Family, reason: str) -> UsageError:
    return UsageError(f"no script for {family.name}: {reason}")


FLATTENING = {
    "records/call_form.py": ("field_names", "attributes"),
    "backends/calling.py": (
        *("flatten_outputs", "graph_outputs", "NUMBERS", "TRACED_NUMBERS", "CONSTANTS", "LEAVES", "NOT_OPENED"),
        *("_TRACED_TYPES", "_tensor_of", "_leaves", "_collect", "_from_numpy"),
    ),
}
"""What the run takes answers apart with, by its file. A script does it with the same lines."""

FLATTENING_IMPORTS = (
    *("import dataclasses", "import sys", "from enum import Enum", "from typing import Any"),
    *(
        "from collections.abc import Iterator, Mapping, Sequence",
        "from types import FunctionType, MethodType, ModuleType",
    ),
)


def flattening_source() -> str:
    return "\n\n\n".join(_source_of(file, names) for file, names in FLATTENING.items())


def _source_of(file: str, names: Sequence[str] = ()) -> str:
    """Return what a file of ours defines, or only these names of it, without its imports. The file is not run."""
    text = Path(models.__file__).parents[1].joinpath(file).read_text(encoding="utf-8")
    body = ast.parse(text).body
    lines = text.splitlines()
    if not names:
        defining = (node for node in body if not isinstance(node, ast.Expr | ast.Import | ast.ImportFrom))
        return "\n".join(lines[next(defining).lineno - 1 :])
    parts = {name: "\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in body for name in _defined_by(node)}
    return "\n\n\n".join(parts[name] for name in names)


def _defined_by(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
            return [name]
    return []
