"""What `from bakeoff import ...` gives to plug-ins, and what `import bakeoff` costs."""

from __future__ import annotations

import ast
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import bakeoff
from tests.support.checkout import ROOT

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


def test_importing_it_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import time; begun = time.process_time(); import bakeoff; took = time.process_time() - begun; import sys;"
        "print(took, *sys.modules.keys() & {'torch', 'numpy', 'onnx', 'pydantic', 'bakeoff.backends'})"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    said = [
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
        for _ in range(3)
    ]
    assert [words[1:] for words in said] == [[]] * 3
    assert statistics.median(float(words[0]) for words in said) < MAX_IMPORT_S


def test_the_contract_of_plug_ins_is_imported_without_torch() -> None:
    code = (
        "import sys; from bakeoff import Backend, BuildContext, Compiled, Dimension, Family, LoadedModel, Mode, Suits;"
        "sys.exit('torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0
