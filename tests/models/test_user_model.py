"""A user's model: what is read from its file without running it, what it may return, and what is refused."""

import ast
import inspect
import json
import os
import pickle
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from bakeoff import models
from bakeoff.models.base import INPUT_SETS, Inputs, LoadedModel
from bakeoff.models.example_inputs import MAX_CALLS, with_own_inputs
from bakeoff.models.source_code import big_libraries_of
from bakeoff.models.unwrapping import MAKES_LAYERS, completed, form_by_mode, training_layers
from bakeoff.models.user import UserModel
from bakeoff.records.errors import UsageError
from tests.conftest import CommandLine
from tests.models.loading import load
from tests.support.checkout import python

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file with `code`, and return the model's name."""

    def write(code: str, factory: str = "factory") -> str:
        (tmp_path / "net.py").write_text(f"import torch\nfrom torch import nn\n{code}")
        return f"{tmp_path / 'net.py'}:{factory}"

    return write


def returning(expression: str) -> str:
    return f"def factory(batch: int = 5):\n    return {expression}"


def test_planning_runs_neither_torch_nor_the_file(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        "import torch\nraise SystemExit('the file was run')\n"
        "def factory(batch: int = 8, seq=128, *, activation='gelu', seed): 'A net.\\n\\nMore.'\n"
    )
    code = (
        "import sys; from bakeoff import models\n"
        f"family = models.find({str(path)!r} + ':factory')\n"
        "assert family.resolve({'seq': '64'}) == {'batch': 8, 'seq': 64, 'activation': 'gelu'}\n"
        "assert family.description == 'A net.'\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    python(code)


def test_what_a_file_imports_by_its_name_counts_as_its_own(write: Write, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("from .nets import build, calibrate, score as evaluate\n")
    (tmp_path / "parts" / "nets.py").write_text(
        "import torch\n"
        "def build(batch: int = 3):\n    return torch.nn.Linear(2, 4), torch.randn(batch, 2)\n"
        "def score(predict):\n    return {'rows': 1.0}\n"
        "def calibrate(model, data):\n    'Of another library, by chance.'\n"
    )
    name = write("from parts import build as factory, calibrate, evaluate\nfrom torch import compile, no_grad\n")
    family = models.find(name)
    assert isinstance(family, UserModel) and "parts" not in sys.modules, "nothing is imported to plan a run"
    assert family.resolve({}) == {"batch": 3} and not family.calibrates
    assert family.evaluated_by.endswith("net.py:evaluate")
    assert models.find_evaluate(family.evaluated_by)(None) == {"rows": 1.0}
    assert load(name).inputs[0].args[0].shape == (3, 2)


def test_a_default_below_one_is_not_a_size(write: Write) -> None:
    family = models.find(write("def factory(batch=8, shift=-1, *args, **options): ..."))
    assert family.resolve({"shift": "-2"}) == {"batch": 8, "shift": -2}
    with pytest.raises(UsageError, match="'batch' must be at least 0"):
        family.resolve({"batch": -2})


def test_a_count_may_be_zero_and_a_size_may_not(write: Write) -> None:
    name = write(returning("nn.Linear(3, 2), torch.randn(batch, 3)"))
    family = models.find(name)
    assert family.resolve({"batch": "0"}) == {"batch": 0}
    with pytest.raises(UsageError, match="the example inputs have no elements"):
        family.load({"batch": 0}, 0)


def test_a_tensor_is_the_one_argument(write: Write) -> None:
    loaded = load(write(returning("nn.Linear(3, 2), torch.randn(batch, 3)")), batch=4)
    assert [[t.shape for t in inputs.args] for inputs in loaded.inputs] == [[(4, 3)]] * INPUT_SETS
    assert not loaded.module.training


def test_a_tuple_is_positional_and_rolls_in_step(write: Write) -> None:
    loaded = load(write(returning("nn.Identity(), ((rows := torch.randperm(batch)), rows * 10., torch.ones(3), 7)")))
    for by, inputs in enumerate(loaded.inputs):
        rows, tens, unbatched, constant = inputs.args
        assert torch.equal(rows, loaded.inputs[0].args[0].roll(by))
        assert torch.equal(tens, rows * 10.0)
        assert unbatched.tolist() == [1, 1, 1] and constant == 7
    for place in range(3):
        assert len({inputs.args[place].data_ptr() for inputs in loaded.inputs}) == INPUT_SETS


def test_a_dict_is_by_keyword_and_may_nest(write: Write) -> None:
    name = write(returning("nn.Identity(), {'a': [torch.randn(batch, 2), {'b': torch.randperm(batch)}], 'k': None}"))
    first, second, *_ = load(name).inputs
    assert first.args == () and set(first.kwargs) == {"a", "k"} and first.kwargs["k"] is None
    assert len(first.tensors()) == 2
    assert torch.equal(second.kwargs["a"][1]["b"], first.kwargs["a"][1]["b"].roll(1))


def test_a_batch_of_one_repeats_neither_values_nor_memory(write: Write) -> None:
    tensors = [
        inputs.args[0] for inputs in load(write(returning("nn.Identity(), torch.randn(batch, 3)")), batch=1).inputs
    ]
    assert not any(torch.equal(tensor, tensors[0]) for tensor in tensors[1:])
    assert len({tensor.data_ptr() for tensor in tensors}) == INPUT_SETS


def test_layout_aliases_and_requires_grad_are_those_of_the_factory(write: Write) -> None:
    images = "torch.rand(batch, 3, 4, 4).to(memory_format=torch.channels_last)"
    twice = "(x := torch.rand(batch, 2, dtype=torch.float64, requires_grad=True))"
    for inputs in load(write(returning(f"nn.Identity(), ({images}, {twice}, x)"))).inputs:
        image, first, second = inputs.args
        assert image.is_contiguous(memory_format=torch.channels_last)
        assert first is second and first.requires_grad and not image.requires_grad


CALLS = "import bakeoff\ndef factory(batch: int = 2):\n    x = torch.randn(batch, 3)\n    return nn.Identity(), {}"


@pytest.mark.parametrize(
    "calls",
    ["[bakeoff.Call((x, 7)), bakeoff.Call((x + 1, 7))]", "(bakeoff.Call((x + number, 7)) for number in range(2))"],
)
def test_several_example_calls_are_the_sets(write: Write, calls: str) -> None:
    first, second = load(write(CALLS.format(calls))).inputs
    torch.testing.assert_close(second.args[0], first.args[0] + 1)
    assert first.args[1] == second.args[1] == 7


@pytest.mark.parametrize("calls", ["bakeoff.Call(x)", "[bakeoff.Call((x,))]", "[bakeoff.Call(kwargs={'input': x})]"])
def test_a_single_example_call_is_an_example(write: Write, calls: str) -> None:
    sets = load(write(CALLS.format(calls))).inputs
    assert len(sets) == INPUT_SETS and not torch.equal(sets[0].tensors()[0], sets[1].tensors()[0])


def test_no_more_calls_are_asked_for_than_are_sets(write: Write) -> None:
    endless = "(bakeoff.Call(torch.randn(batch, 3)) for _ in iter(int, 1))"
    assert len(load(write(CALLS.format(endless))).inputs) == MAX_CALLS


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_inputs_become_as_wide_as_float32(write: Write, dtype: str) -> None:
    loaded = load(write(returning(f"nn.Identity(), torch.randn(batch, 3, dtype=torch.{dtype})")))
    assert {inputs.args[0].dtype for inputs in loaded.inputs} == {torch.complex64}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_floats_become_float32_and_integers_stay(write: Write, dtype: str) -> None:
    x = f"torch.randn(batch, 3, dtype=torch.{dtype})"
    loaded = load(write(returning(f"nn.Linear(3, 2).to(torch.{dtype}), ({x}, torch.arange(batch, dtype=torch.int32))")))
    assert {weight.dtype for weight in loaded.module.parameters()} == {torch.float32}
    assert [tensor.dtype for tensor in loaded.inputs[0].tensors()] == [torch.float32, torch.int32]


def test_a_module_may_name_what_surgical_compilation_compiles(write: Write) -> None:
    body = "    net = nn.Sequential(nn.Linear(3, 3), nn.GELU())\n    {}\n    return net, torch.randn(batch, 3)"
    factory = f"def factory(batch: int = 5):\n{body}"
    assert load(write(factory.format("pass"))).surgical_targets == ()
    assert load(write(factory.format("net.surgical_targets = ['1']"))).surgical_targets == ("1",)
    with pytest.raises(UsageError, match=r"surgical_targets is a value of type str: expected names like \['layers"):
        load(write(factory.format("net.surgical_targets = '1'")))


def test_seeds(write: Write) -> None:
    code = "def factory(seed, batch: int = 2):\n    return nn.Linear(2, 2), (torch.randn(batch, 2), seed)"
    name = write(f"drawn_while_importing = torch.rand(1)\n{code}")
    first, again, other = load(name, 1), load(name, 1), load(name, 2)
    assert torch.equal(first.inputs[0].args[0], again.inputs[0].args[0])
    assert torch.equal(next(first.module.parameters()), next(again.module.parameters()))
    assert not torch.equal(first.inputs[0].args[0], other.inputs[0].args[0])
    assert (first.inputs[0].args[1], other.inputs[0].args[1]) == (1, 2)


def test_siblings_import_at_any_time(write: Write, tmp_path: Path) -> None:
    (tmp_path / "sibling_of_net.py").write_text("WIDTH = 3")
    (tmp_path / "lazy_sibling_of_net.py").write_text("WIDTH = 4")
    (tmp_path / "sibling_of_a_call.py").write_text("SCALE = 0.5")
    name = write(
        "import sibling_of_net\n"
        "class Net(nn.Linear):\n"
        "    def forward(self, x):\n        from sibling_of_a_call import SCALE\n        return SCALE * x\n"
        "def factory():\n    import lazy_sibling_of_net as lazy\n"
        "    return Net(sibling_of_net.WIDTH, lazy.WIDTH), torch.ones(2, 3)"
    )
    loaded = load(name)
    assert loaded.module.weight.shape == (4, 3)
    assert loaded.module(torch.ones(3)).tolist() == [0.5] * 3
    assert sys.path[0] == str(tmp_path)
    load(name)
    assert sys.path.count(str(tmp_path)) == 1


REGISTERS = (
    "lib = torch.library.Library('bakeoff_test_{}', 'DEF')\n"
    "lib.define('add1(Tensor x) -> Tensor')\n"
    "lib.impl('add1', lambda x: x + 1, 'CompositeExplicitAutograd')\n"
)
"""What torch allows once in a process, like many other registrations."""


def test_a_file_that_registers_something_is_run_once_in_a_process(write: Write) -> None:
    name = write(
        f"{REGISTERS.format('once')}drawn = torch.rand(1)\n"
        "def factory(batch: int = 2):\n"
        "    if batch == 9:\n        raise RuntimeError('too large')\n"
        "    return nn.Linear(2, 2), torch.randn(batch, 2)"
    )
    with pytest.raises(RuntimeError, match="too large"):
        load(name, batch=9)
    first, second = load(name), load(name)
    assert first.module is not second.module and type(second.module) is type(first.module)
    assert torch.equal(first.module.weight, second.module.weight)
    assert torch.equal(first.inputs[0].args[0], second.inputs[0].args[0])


@pytest.mark.slow
def test_a_file_that_draws_numbers_draws_the_same_ones_in_every_process(write: Write) -> None:
    name = write(
        "drawn = torch.rand(1)\ndef factory(batch: int = 2):\n    return nn.Linear(2, 2), torch.ones(batch, 2)"
    )
    fresh = f"from bakeoff import models; print(models.find({name!r}).load({{}}, 0).module.weight.tolist())"
    assert python(fresh).strip() == str(load(name).module.weight.tolist())


def test_what_calls_leave_in_a_files_variables_is_gone_in_the_next_load(write: Write) -> None:
    name = write(
        f"import functools\n{REGISTERS.format('tables')}"
        "table, tables, ready = None, {}, False\n"
        "class Shared:\n    table = None\n"
        "shared = Shared()\n"
        "@functools.cache\ndef cached(size):\n    return []\n"
        "@functools.cache\ndef register_once():\n    torch.library.define('bakeoff_test_factory::add1', '() -> ()')\n"
        "class Net(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        global table, late\n"
        "        assert (table, tables, Shared.table, shared.table, cached(3)) == (None, {}, None, None, [])\n"
        "        table = late = Shared.table = shared.table = tables['x'] = x.double()\n"
        "        cached(3).append(x)\n"
        "        return x\n"
        "def factory():\n"
        "    global ready\n    assert 'late' not in globals()\n    register_once()\n"
        "    if not ready:\n        torch.library.define('bakeoff_test_guarded::add1', '() -> ()')\n"
        "        ready = True\n"
        "    return Net(3, 3), torch.ones(2, 3)"
    )
    for _ in range(3):
        load(name).module(torch.ones(3))


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("module", "kept = nn.Linear(3, 3)\ndef factory():\n    return kept, torch.ones(2, 3)"),
        ("part", "kept = nn.Linear(3, 3)\ndef factory():\n    return nn.Sequential(kept, nn.ReLU()), torch.ones(2, 3)"),
        (
            "cached",
            "import functools\n@functools.cache\ndef made():\n    return nn.Linear(3, 3)\n"
            "def factory():\n    return made(), torch.ones(2, 3)",
        ),
        (
            "tensor",
            "steps = torch.zeros(3)\nclass Net(nn.Linear):\n    def forward(self, x):\n        return steps.add_(x)\n"
            "def factory():\n    return Net(3, 3), torch.ones(2, 3)",
        ),
    ],
)
def test_what_a_file_keeps_is_fresh_or_refused(write: Write, what: str, code: str) -> None:
    for registers in ("", REGISTERS.format(what)):
        name = write(registers + code)
        first = load(name).module.double()
        first(torch.ones(2, 3, dtype=torch.float64)[0])
        if registers:
            with pytest.raises(UsageError, match=r"keeps the model.*a second time.*inside of factory\(\)"):
                load(name)
        else:
            second = load(name).module
            assert first is not second and next(second.parameters()).dtype is torch.float32


@pytest.mark.parametrize("registers", ["", REGISTERS.format("apart")])
def test_models_that_are_used_in_turns_have_variables_of_their_own_where_a_file_runs_twice(
    write: Write, registers: str
) -> None:
    name = write(
        f"{registers}table = None\n"
        "class Net(nn.Linear):\n"
        "    def forward(self, x):\n        global table\n"
        "        table = x.dtype if table is None else table\n        return table\n"
        "def factory():\n    return Net(3, 3), torch.ones(2, 3)"
    )
    first = load(name).module
    family = models.find(name)
    assert isinstance(family, UserModel)
    family.keep_apart()
    second = load(name).module
    assert first(torch.ones(3)) is torch.float32
    assert second(torch.ones(3).double()) is (torch.float32 if registers else torch.float64)
    assert type(pickle.loads(pickle.dumps(second))) is type(second)


def test_a_constant_that_modules_share_is_not_the_model(write: Write) -> None:
    name = write(
        f"{REGISTERS.format('shared')}mask, act = torch.ones(3), nn.GELU()\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.act = act\n"
        "        self.register_buffer('mask', mask)\n"
        "    def forward(self, x):\n        return self.act(x) * self.mask\n"
        "def factory():\n    return Net(), torch.ones(2, 3)"
    )
    for _ in range(2):
        load(name).module(torch.ones(3))


KEEPS_ITS_MODULE = "import torch\nclass Net(torch.nn.Linear): ...\nkept = Net(3, 3)\n"


def test_a_file_with_the_name_of_a_library_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "torch.py"
    path.write_text(f"import sys\ntorch = sys.modules['torch']\n{returning('torch.nn.Identity(), torch.ones(3)')}")
    assert load(f"{path}:factory").module(3) == 3
    assert sys.modules["torch"] is torch


@pytest.mark.slow
def test_a_file_takes_no_place_of_a_module_that_is_imported_later(tmp_path: Path) -> None:
    for name in ("sparse", "sched"):
        (tmp_path / f"{name}.py").write_text(KEEPS_ITS_MODULE + returning("kept, torch.ones(batch, 3)"))
    (tmp_path / "sibling_of_sparse.py").write_text("import sparse\n")
    code = (
        "import sys; from bakeoff import models; from bakeoff.models import user\n"
        f"module = models.find('{tmp_path}/sparse.py:factory').load({{'batch': 1}}, 0).module\n"
        f"models.find('{tmp_path}/sched.py:factory').load({{'batch': 1}}, 0)\n"
        "assert 'sparse' not in sys.modules\n"
        "import sched; assert hasattr(sched, 'scheduler'), sched\n"
        "import sibling_of_sparse; assert sibling_of_sparse.sparse.Net is type(module)\n"
    )
    python(code)


PACKAGE = {
    "detector/__init__.py": "",
    "detector/nets/__init__.py": "raise SystemExit('the package was imported')",
    "detector/nets/small.py": "from ..layers import made\n\ndef factory(batch: int = 2):\n    return made(batch)\n",
    "detector/layers.py": (
        "import torch\n\ndef made(batch):\n    return torch.nn.Linear(3, 4), torch.randn(batch, 3)\n"
    ),
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stand in a folder that holds a package, and return the folder."""
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "detector"]:
        del sys.modules[name]


def test_planning_finds_a_module_without_importing_its_packages(package: Path) -> None:
    family = models.find("detector.nets.small:factory")
    assert family.resolve({"batch": "5"}) == {"batch": 5}
    assert "detector" not in sys.modules


def test_a_module_may_import_from_its_package(package: Path) -> None:
    (package / "detector/nets/__init__.py").write_text("")
    loaded = load("detector.nets.small:factory", batch=5)
    assert type(loaded.module) is torch.nn.Linear and loaded.inputs[0].args[0].shape == (5, 3)
    assert sys.modules["detector.nets.small"].__file__ == str(package / "detector/nets/small.py")


@pytest.mark.parametrize(
    ("file", "name", "imported_as"),
    [
        ("imported_anew.py", "{}/imported_anew.py:factory", "bakeoff_user_imported_anew"),
        ("detector/kept.py", "detector.kept:factory", "detector.kept"),
    ],
)
def test_what_keeps_its_module_is_imported_anew(file: str, name: str, imported_as: str, package: Path) -> None:
    (package / file).write_text(KEEPS_ITS_MODULE + returning("kept, torch.ones(batch, 3)"))
    first, second = (load(name.format(package), batch=batch).module for batch in (2, 3))
    assert first is not second and torch.equal(first.weight, second.weight)
    assert type(second).__module__ == imported_as and "class Net" in inspect.getsource(type(second))
    assert type(pickle.loads(pickle.dumps(second))) is type(second)


def test_a_folder_without_init_is_a_package_too(package: Path) -> None:
    for name in ("detector/__init__.py", "detector/nets/__init__.py"):
        (package / name).unlink()
    assert load("detector.nets.small:factory").inputs[0].args[0].shape == (2, 3)


def test_an_installed_module_is_found(package: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (package / "detector/nets/__init__.py").write_text("")
    path, elsewhere = sys.path, tmp_path_factory.mktemp("elsewhere")
    os.chdir(elsewhere)
    with pytest.raises(UsageError, match=r"no module 'detector\.nets\.small' can be imported from this folder or this"):
        models.find("detector.nets.small:factory")
    path.append(str(package))
    assert load("detector.nets.small:factory", batch=4).inputs[0].args[0].shape == (4, 3)


def test_a_module_of_one_word(package: Path) -> None:
    (package / "single_module.py").write_text(f"import torch\n{returning('torch.nn.Identity(), torch.ones(batch)')}")
    assert load("single_module:factory", batch=7).inputs[0].args[0].shape == (7,)
    with pytest.raises(UsageError, match=r"unknown model 'single_modul:factory'.*package\.module:factory"):
        models.find("single_modul:factory")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("detector.nets.large:factory", "no module 'detector.nets.large' can be imported from this folder"),
        ("detector.nets.small:factry", "unknown top-level function of .*small.py 'factry': did you mean 'factory'"),
        ("_heapq:factory", "module '_heapq' is not a Python file"),
        (
            "detector/nets/small.py:factory",
            "small.py, line 1, imports from its own package: stand in the folder that holds the package, and write "
            "detector.nets.small:factory",
        ),
    ],
)
def test_modules_that_hold_no_factory(name: str, message: str, package: Path) -> None:
    with pytest.raises(UsageError, match=message):
        models.find(name)


def test_a_file_of_a_src_layout_is_offered_by_the_name_of_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "src" / "mine"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "nets.py").write_text("from .layers import Net\ndef factory():\n    return Net(), None\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"holds the package \(.*src\), and write mine\.nets:factory"):
        models.find("src/mine/nets.py:factory")


def test_a_name_that_is_imported_already_is_refused(package: Path) -> None:
    (package / "calendar.py").write_text(returning("None"))
    import calendar

    assert calendar.__file__ != str(package / "calendar.py")
    with pytest.raises(UsageError, match=r"is in .*calendar\.py, but Python imports .* give one of them another name"):
        load("calendar:factory")


def test_the_users_own_errors_pass_through(write: Write) -> None:
    with pytest.raises(ZeroDivisionError):
        load(write(returning("1 / 0")))
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        load(write("import no_such_package\ndef factory(): ..."))


def test_a_module_in_training_mode_is_told_if_a_layer_acts_otherwise_in_it() -> None:
    layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    training = training_layers(layers)
    assert form_by_mode(training) == ()  # as they stay in it if the module keeps them so
    layers.eval()
    assert form_by_mode(training) == (
        "came with BatchNorm1d and Dropout in training mode, and inference is measured in eval mode",
    )
    layers[2].train()  # this layer alone, as for dropout at test time
    assert training_layers(layers) == [layers[2]]
    assert training_layers(layers.eval()) == training_layers(nn.Linear(4, 4).train()) == []


@pytest.mark.parametrize(
    ("weights", "given", "told"),
    [
        (torch.float32, torch.float32, []),
        (torch.float16, torch.float16, ["weights in float16"]),
        (torch.float32, torch.float64, ["inputs in float64"]),
        (torch.bfloat16, torch.float32, ["weights in bfloat16"]),
    ],
)
def test_the_types_in_which_weights_and_inputs_came_are_told(
    weights: torch.dtype, given: torch.dtype, told: list[str]
) -> None:
    found = with_own_inputs("it", nn.Linear(4, 4).to(weights), {"input": torch.ones(2, 4, dtype=given)}).forms
    assert found == tuple(f"came with {what}: each cell casts them to its own precision" for what in told)


STAGES = """
def before(text):
    return torch.tensor([[float(len(text))] * 4])
def after(outputs):
    return outputs.tolist()
"""


@pytest.mark.parametrize(
    "code",
    [
        STAGES + "def factory():\n    return nn.Linear(4, 2), 'seven77'",
        STAGES + "def example():\n    return 'seven77'\ndef factory():\n    return nn.Linear(4, 2)",
        STAGES + "def example(text):\n    return text\ndef factory(text='seven77'):\n    return nn.Linear(4, 2)",
        "import bakeoff\n"
        + STAGES.replace("before", "first")
        + "def factory():\n    return bakeoff.Pipeline(first, nn.Linear(4, 2), after), 'seven77'",
    ],
    ids=["file", "example", "parameter", "pipeline"],
)
def test_stages_around_the_model(write: Write, code: str) -> None:
    model = load(write(code))
    assert model.inputs[0].args[0].tolist() == [[7.0] * 4]
    assert model.around.raw == "seven77"
    assert model.around.before is not None
    assert model.around.after is not None


NO_DEFAULT = "parameter 'batch' has no default"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("from math import sqrt as factory", "unknown top-level function of .*net.py 'factory'"),
        ("from nowhere_at_all import factory", "unknown top-level function of .*net.py 'factory'"),
        ("from net import factory", "unknown top-level function of .*net.py 'factory'"),
        ("from .nets import factory", "line 3, imports from its own package"),
        ("def factoryy(): ...", r"unknown top-level function of .*net\.py 'factory': did you mean 'factoryy'"),
        ("class Net:\n    def factory(self): ...", "unknown top-level function"),
        ("def factory(:", r"net\.py, line 3: "),
        ("x = 1\0", "null bytes"),
        (
            "async def factory():\n    return nn.Linear(4, 2), torch.ones(1, 4)",
            "factory in .*net.py, line 3, is async, and a factory returns the model itself",
        ),
        ("def factory(batch): ...", f"{NO_DEFAULT}: give it a whole number or a string, like batch=8"),
        ("def factory(*, batch): ...", NO_DEFAULT),
        ("def factory(batch=None): ...", "parameter 'batch' has the default None"),
        ("def factory(batch=1.5): ...", "parameter 'batch' has the default 1.5"),
        ("def factory(causal=True): ...", "parameter 'causal' has the default True"),
        ("def factory(batch=2 * 4): ...", r"parameter 'batch' has the default 2 \* 4"),
        ("def factory(batch=torch.float16): ...", "parameter 'batch' has the default torch.float16"),
        ("def factory(batch={[]}): ...", "parameter 'batch' has the default"),
        ("def factory(batch=8, /): ...", "parameter 'batch' is positional-only"),
        (returning("nn.Linear(3, 2), torch.ones(1), 3"), r"returned a tuple of \(Linear, Tensor, int\): expected"),
        (returning("torch.ones(1), nn.Linear(3, 2)"), r"returned a tuple of \(Tensor, Linear\): expected"),
        (returning("None"), "returned a value of type NoneType"),
        (returning("nn.Linear(3, 2), 'text'"), "are a value of type str: expected a tensor, a tuple"),
        (returning("nn.Linear(3, 2), {1: torch.ones(1)}"), "the example inputs are a value of type dict: expected"),
        (returning("nn.Identity(), (torch.ones(1), object())"), "a value of type object among the example inputs"),
        (returning("nn.Linear(3, 2), (1, 2)"), "no tensor among the example inputs"),
        (
            CALLS.format("[bakeoff.Call((x, 7)), bakeoff.Call((x[:1], 7))]"),
            r"\(1, 3\) for \(2, 3\): .* stream:LOW:HIGH",
        ),
        (
            CALLS.format("[bakeoff.Call((x,)), bakeoff.Call((x.long(),))]"),
            "torch.int64, torch.strided for torch.float32",
        ),
        (CALLS.format("[bakeoff.Call((x, 7)), bakeoff.Call((x, 8))]"), "example call 1 has 8 for 7"),
        (CALLS.format("[bakeoff.Call((x, 7)), bakeoff.Call((x,))]"), "example call 1 has other arguments"),
        (CALLS.format("[bakeoff.Call((x, 7)), bakeoff.Call((x,), {'y': 7})]"), "example call 1 has other arguments"),
        (f"{STAGES}def factory():\n    return nn.Linear(4, 2)", r"before\(\) has no example"),
        (
            f"{STAGES}def example(k):\n    return k\ndef factory():\n    return nn.Linear(4, 2)",
            r"unknown parameter of example\(\) for .* 'k': .*rename a function that serves something else",
        ),
    ],
)
def test_what_makes_no_model_is_refused_in_one_line(write: Write, code: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load(write(code))
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    for name, message in (("missing", r"no file .*missing\.py"), ("folder", "cannot read")):
        with pytest.raises(UsageError, match=message):
            models.find(f"{tmp_path}/{name}.py:factory")


PROBLEM = '''
import torch
from torch import nn

class Model(nn.Module):
    """A product.

    More of it.
    """
    def __init__(self, width, bias=False):
        super().__init__()
        self.linear = nn.Linear(width, half, bias=bias)
    def forward(self, x):
        return self.linear(x)

batch_size = 2 * 4
width: int = 16
half = width // 2
act = "gelu"
ratio = 0.5
_private = 3

def get_inputs():
    return [torch.rand(batch_size, width)]

def get_init_inputs():
    return [width]
'''


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "1_Product.py"
    path.write_text(PROBLEM)
    return path


def test_what_the_file_assigns_is_a_dimension_and_what_it_computes_from_it_follows(problem: Path) -> None:
    family = models.find(str(problem))
    assert family.name == str(problem) and family.description == "A product."
    assert family.resolve({"width": "32"}) == {"batch_size": 8, "width": 32, "act": "gelu"}
    for width in (32, 16, 32):  # one process measures several sizes
        model = load(str(problem), width=width)
        assert model.module.linear.weight.shape == (width // 2, width)
        assert [inputs.args[0].shape for inputs in model.inputs] == [(8, width)] * INPUT_SETS
    with pytest.raises(UsageError, match=r"unknown dimension of .* 'half'.*whole numbers and texts at its top level"):
        family.resolve({"half": 3})


def test_each_set_of_inputs_is_a_call_of_its_own_that_follows_the_seed(problem: Path) -> None:
    first, again, other = load(str(problem), 1), load(str(problem), 1), load(str(problem), 2)
    tensors = [inputs.args[0] for inputs in first.inputs]
    assert all(float(tensor.min()) >= 0 and not torch.equal(tensor, tensors[0]) for tensor in tensors[1:])
    assert all(torch.equal(inputs.args[0], tensor) for inputs, tensor in zip(again.inputs, tensors, strict=True))
    assert torch.equal(first.module.linear.weight, again.module.linear.weight)
    assert not torch.equal(first.inputs[0].args[0], other.inputs[0].args[0])
    assert not torch.equal(first.module.linear.weight, other.module.linear.weight)


@pytest.mark.parametrize(
    ("initial", "inputs", "has_bias"),
    [
        ("[width, True]", "[torch.ones(batch_size, width)]", True),
        ("[[width], {'bias': True}]", "{'x': torch.rand(batch_size, width)}", True),
        ("{'width': width}", "(torch.rand(batch_size, width),)", False),
    ],
)
def test_other_forms_of_arguments(problem: Path, initial: str, inputs: str, has_bias: bool) -> None:
    text = PROBLEM.replace("[width]", initial).replace("[torch.rand(batch_size, width)]", inputs)
    problem.write_text(text)
    model = load(str(problem))
    assert (model.module.linear.bias is not None) is has_bias
    tensors = [call.tensors()[0] for call in model.inputs]
    assert len(tensors) == INPUT_SETS and not torch.equal(*tensors[:2]), "equal calls of get_inputs are changed"


def test_a_function_of_the_form_is_no_factory(problem: Path) -> None:
    for name in ("Model", "get_inputs", "get_init_inputs"):
        with pytest.raises(UsageError, match=rf"write --model .*1_Product\.py, without {name}"):
            models.find(f"{problem}:{name}")
    assert models.option_for(str(problem)) == f"--model {problem}"


def test_a_pattern_stands_for_the_files_with_a_model(problem: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def factory(batch: int = 1): ...\n")
    (tmp_path / "helper.py").write_text("def factorial(): ...\n")
    (tmp_path / "broken.py").write_text("def factory(:\n")
    names, left_out = models.expanded(["mlp", f"{tmp_path}/*.py"])
    assert names == ["mlp", str(problem), f"{tmp_path}/own.py:factory"]
    assert [reason.partition(" was left out: ")[0] for reason in left_out] == [
        f"{tmp_path}/broken.py",
        f"{tmp_path}/helper.py",
    ]
    assert "line 1" in left_out[0]
    with pytest.raises(UsageError, match=r"no file there has a function factory, or a class Model"):
        models.expanded([f"{tmp_path}/h*.py"])


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files and folders with one fault each."""
    made = tmp_path_factory.mktemp("faulty")
    config = {"model_type": "bert", "vocab_size": 9}
    for name, known, more in (
        ("pickled", config, "pytorch_model.bin"),
        ("mistyped", config | {"model_type": "brt"}, "empty"),
        ("pipeline", None, "model_index.json"),
    ):
        folder = made / name
        folder.mkdir()
        (folder / more).write_text("{}")
        if known:
            (folder / "config.json").write_text(json.dumps(known))
    (made / "short.onnx").write_bytes(b"\x08\x0a\x12\x07pytorch:\xff")
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), made / "linear.pt2")
    _rewrite(made / "linear.pt2", made / "future.pt2", _of_the_future)
    torch.save(torch.nn.Linear(2, 2).state_dict(), made / "weights.pt")
    torch.jit.script(torch.nn.Linear(2, 2)).save(made / "scripted.pt")
    (made / "exported.pt").write_bytes((made / "linear.pt2").read_bytes())
    (made / "net.safetensors").write_bytes(b"")
    for file in ("problems/1.py", "graph/model.py", "graph/weight_meta.py"):
        (made / file).parent.mkdir(exist_ok=True)
        (made / file).touch()
    (made / "unet").mkdir()
    (made / "unet/config.json").write_text(json.dumps({"_class_name": "UNet2DModel"}))
    (made / "short.pt2").write_bytes((made / "linear.pt2").read_bytes()[:999])
    (made / "mine.py").write_text(
        "class Net:\n    pass\n\n\ndef factory(batch=2):\n    return 3\n\n\n"
        "partial = functools.partial(factory, 3)\nalias = other.build\nmodel: Net = Net()\nif model:\n"
        "    def late(batch=2):\n        return model\n"
    )
    functions = "def get_inputs():\n    return [1]\n", "def get_init_inputs():\n    return []\n"
    (made / "no_initial.py").write_text(f"class Model:\n    pass\n{functions[0]}")
    (made / "no_inputs.py").write_text(f"class Model:\n    pass\n{functions[1]}")
    (made / "no_model.py").write_text("".join(functions))
    (made / "number.py").write_text("x = 1\n")
    (made / "assigned.py").write_text("make = functools.partial(build, 3)\n")
    return made


@pytest.fixture
def files(faulty: Path, tmp_path: Path) -> None:
    """These files, in the folder that the command line starts from."""
    shutil.copytree(faulty, tmp_path, dirs_exist_ok=True)


def _rewrite(file: Path, to: Path, change: Callable[[str, bytes], bytes]) -> None:
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(to, "w") as written:
        for name in archive.namelist():
            written.writestr(name, change(name, archive.read(name)))


def _of_the_future(name: str, content: bytes) -> bytes:
    if not name.endswith("models/model.json"):
        return content
    later = {"schema_version": {"major": 99, "minor": 1}, "torch_version": "9.1"}
    return json.dumps({**json.loads(content), **later}).encode()


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("hf:mistyped", "unknown type of model in hf:mistyped 'brt': did you mean 'bert'?"),
        ("diffusers:nowhere", "no folder nowhere"),
        ("diffusers:pipeline", "such as the subfolder unet of a pipeline"),
        ("onnx:nowhere.onnx", "no file nowhere.onnx"),
        ("onnx:short.onnx", "is no whole ONNX model"),
        ("pt2:nowhere.pt2", "no file nowhere.pt2"),
        ("pt2:short.pt2", "cannot be read by torch"),
        ("pt2:future.pt2", "(torch 9.1 wrote it, in schema 99.1)"),
        ("timm:resnt50", "unknown model of timm 'resnt50': did you mean 'resnet50'"),
        ("torchvision:resnt50", "unknown model of torchvision 'resnt50': did you mean 'resnet50'"),
        ("tim:resnet50", "unknown model 'tim:resnet50': known: "),
        ("nowhere.py:factory", "no file nowhere.py"),
        (
            "mine.py:Net",
            "Net in mine.py is a class. A factory is a function that returns the model and the inputs of a call: "
            "def factory(batch: int = 1): return Net(...), torch.randn(batch, ...)",
        ),
        *(
            (
                f"mine.py:{name}",
                f"{name} in mine.py, line {line}, is not written with def at the top level, and Bakeoff ",
            )
            for name, line in (("partial", 9), ("alias", 10), ("model", 11), ("late", 13))
        ),
        ("assigned.py", "make in assigned.py, line 1, is not written with def at the top level"),
        ("no_initial.py", "has the class Model and function get_inputs, and lacks the function get_init_inputs"),
        ("no_inputs.py", "has the class Model and function get_init_inputs, and lacks the function get_inputs"),
        ("no_model.py", "has the function get_inputs and function get_init_inputs, and lacks the class Model"),
        ("number.py", "unknown top-level function of number.py 'factory'"),
        ("mine.py:factry", "unknown top-level function of mine.py 'factry': did you mean 'factory'?"),
        ("mlp:factory", "unknown model 'mlp:factory'"),
        ("short.onnx", "unknown model 'short.onnx': did you mean onnx:short.onnx?"),
        ("linear.pt2", "unknown model 'linear.pt2': did you mean pt2:linear.pt2?"),
        ("exported.pt", "unknown model 'exported.pt': did you mean pt2:exported.pt?"),
        ("./pickled", "unknown model './pickled': did you mean hf:./pickled?"),
        ("unet", "unknown model 'unet': did you mean diffusers:unet?"),
        ("graph", "unknown model 'graph': did you mean graphnet:graph?"),
        ("problems/", "unknown model 'problems/': it is a folder: write --model 'problems/*.py'"),
        (
            "scripted.pt",
            "unknown model 'scripted.pt': a file of TorchScript needs a factory, --model FILE.py:factory, with def "
            "factory(batch: int = 1) that returns torch.jit.load('scripted.pt'), torch.randn(batch, ...)",
        ),
        ("weights.pt", "unknown model 'weights.pt': weights without code need a factory, --model FILE.py:factory"),
        ("net.safetensors", "unknown model 'net.safetensors': weights without code need a factory"),
        ("nowhere.onnx", "unknown model 'nowhere.onnx': known: "),
    ],
)
def test_a_bad_source_is_refused_in_one_line(
    command_line: CommandLine, request: pytest.FixtureRequest, source: str, said: str
) -> None:
    if source.startswith(("timm:", "torchvision:")):
        request.getfixturevalue("vision")
    pytest.importorskip({"hf": "transformers", "onnx": "onnx"}.get(source.partition(":")[0], "torch"))
    status, out, err = command_line("--model", source, "--devices", "cpu", "--dry-run")
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: ") and said in line


@pytest.mark.usefixtures("files")
def test_a_file_without_an_option_is_told_the_one_that_it_needs(command_line: CommandLine) -> None:
    status, _, err = command_line("short.onnx")
    assert (status, err) == (
        2,
        "error: 'short.onnx' is a model, not a command: write bakeoff --model onnx:short.onnx\n",
    )


FACTORY = "def factory():\n    return None\n"


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import torch\nfrom transformers import BertModel", ("transformers.modeling_utils", "transformers.BertModel")),
        ("import numpy as np\nimport timm.models\nimport torchvision as tv", ("timm", "torchvision")),
        (
            "def factory():\n    from diffusers import UNet2DModel",
            ("diffusers.models.modeling_utils", "diffusers.UNet2DModel"),
        ),
        ("from torchvision.ops import *", ("torchvision",)),
        ("import torch\nclass Net:\n    def __init__(self):\n        self.torch = torch", ()),
        ("import timm\nclass Net:\n    def __init__(self):\n        self.timm = timm", ("timm",)),
        ("import mine\nimport timm", ()),
        ("from . import mine\nimport timm", ()),
        ("from .mine import net\nimport timm", ()),
        ("import os\nos.environ['TIMM_FUSED_ATTN'] = '0'\nimport timm", ()),
        ("from os import environ as settings\nsettings['A'] = '0'\nimport timm", ()),
        ("import os as system\nsystem.putenv('A', '0')\nimport timm", ()),
        ("import sys\nsys.path.insert(0, 'old')\nimport timm", ()),
        ("import torch\ntorch.backends.cudnn.enabled = False\nimport timm", ()),
        ("import torch.nn.functional as F\nF.gelu = F.relu\nimport timm", ()),
        ("import torch\nsetattr(torch, 'compile', None)\nimport timm", ()),
        ("exec(open('settings.py').read())\nimport timm", ()),
    ],
)
def test_libraries_are_shared_unless_the_file_may_change_their_import(source: str, modules: tuple[str, ...]) -> None:
    assert big_libraries_of(ast.parse(source)) == modules


def test_a_library_of_the_users_own_is_not_the_installed_one(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(f"import timm\n{FACTORY}")
    assert models.find(f"{tmp_path}/net.py:factory").imports == ("timm",)
    (tmp_path / "timm.py").write_text("")
    assert models.find(f"{tmp_path}/net.py:factory").imports == ()


class Named(nn.Module):
    """Names a class of layers in its forward, and keeps something."""

    def __init__(self, answer: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear, self.late = nn.Linear(8, 8), None
        self.answer, self.calls = answer, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.answer(self, self.linear(x) if isinstance(self.linear, nn.Linear) else x)


def makes_a_layer(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    module.late = module.late or nn.Linear(8, 8)
    return module.late(x)


def needs_gradients(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(x.sum(), x)[0]


@pytest.mark.parametrize(
    ("answer", "calls"),
    [(makes_a_layer, 1), (lambda module, x: x, 0), (needs_gradients, 0)],
    ids=["makes a layer", "answers its input", "needs gradients"],
)
def test_only_a_model_that_makes_layers_is_called_when_it_is_loaded(
    answer: Callable[[nn.Module, torch.Tensor], torch.Tensor], calls: int
) -> None:
    found = completed(LoadedModel(Named(answer), (Inputs((torch.randn(4, 8),)),)), seed=1)
    assert (found.module.calls, found.forms) == (calls, (MAKES_LAYERS,) * calls)
