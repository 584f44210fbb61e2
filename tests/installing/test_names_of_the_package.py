"""What `from bakeoff import ...` gives to plug-ins, and what `import bakeoff` costs."""

import ast
import statistics
import sys
from pathlib import Path

import pytest

import bakeoff
from tests.support.checkout import python

MAX_IMPORT_S = 0.2


@pytest.mark.parametrize("name", bakeoff.__all__)
def test_every_name_is_what_its_module_defines(name: str) -> None:
    value = getattr(bakeoff, name)
    (module,) = (module for module, names in bakeoff._MODULES.items() if name in names)
    assert value is getattr(sys.modules[module], name)
    assert name in dir(bakeoff)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(bakeoff.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        node.module: tuple(alias.name for alias in node.names)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
    }
    assert seen == bakeoff._MODULES
    assert sorted(name for names in seen.values() for name in names) == sorted(bakeoff.__all__)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'bakeoff' has no attribute 'Backends'"):
        bakeoff.Backends  # noqa: B018


def test_importing_it_is_quick() -> None:
    code = "import time; begun = time.process_time(); import bakeoff; print(time.process_time() - begun)"
    assert statistics.median(float(python(code)) for _ in range(3)) < MAX_IMPORT_S


PLANS = """import pathlib, tempfile
import bakeoff.cli, bakeoff.commands.selfcheck, bakeoff.measuring.controller.contest_run
from bakeoff import models
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
file = pathlib.Path(tempfile.mkdtemp(), "mine.py")
file.write_text("import torch\\ndef factory(batch: int = 1): ...\\n")
named = (*models.TABLE, f"{file}:factory")
contests = plan(Request(models=named, backends=("all/all",), devices=("cpu", "cuda")))
assert len(contests) == 2 * len(named)
for family in map(models.find, models.TABLE):
    family.resolve({next(iter(family.dimensions)): "48"})
"""
ONLY_FOR_A_RUN = "numpy jinja2 psutil bakeoff.reports.writer bakeoff.judging.fit"


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import bakeoff", "torch numpy onnx pydantic bakeoff.backends"),
        ("from bakeoff import Backend, BuildContext, Compiled, Dimension, Family, LoadedModel, Mode, Suits", "torch"),
        ("from bakeoff import backends", "torch numpy onnx onnxruntime bakeoff.backends.base bakeoff.backends.eager"),
        ("import bakeoff.api.pytest_plugin", "torch numpy pydantic bakeoff.api.compare"),
        (PLANS, "torch onnx onnxruntime openvino tensorrt triton"),
        ("from bakeoff import cli; cli.main(['list'])", "torch scipy onnx"),
        ("from bakeoff import cli; cli.main(['--help'])", ONLY_FOR_A_RUN),
        ("from bakeoff import cli; cli.main(['run', '--help'])", ONLY_FOR_A_RUN),
        ("from bakeoff import cli; cli.main(['run', '--nonsense'])", ONLY_FOR_A_RUN),
        ("from bakeoff import cli; cli.main(['--model', 'cnv'])", ONLY_FOR_A_RUN),
        ("from bakeoff import cli; cli.main(['--backends', 'onx'])", ONLY_FOR_A_RUN),
    ],
)
def test_what_has_to_be_quick_imports_nothing_heavy(code: str, heavy: str) -> None:
    """Which rooms import torch, numpy or matplotlib at all is checked by `lint-imports`."""
    assert python(f"{code}\nimport sys; print(*{set(heavy.split())} & sys.modules.keys())").splitlines()[-1] == ""
