"""A module that lives in this process comes to a worker as it is, and leaves nothing changed here."""

import importlib.util
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from torch import nn

from bakeoff import models
from bakeoff.models import live_model
from bakeoff.models.base import LIVE_MODEL, LoadedModel, Pipeline
from bakeoff.models.live_model import About
from bakeoff.records.errors import UsageError
from tests.support.checkout import python


class Tied(nn.Module):
    """Weights that are tied, and a buffer that a state dict leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 8)
        self.last.weight = self.first.weight
        self.register_buffer("scale", torch.arange(8.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.last(self.first(x)) * self.scale
        return scaled


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LoadedModel]:
    """Return what a worker would load of a model and its inputs."""

    def take(model: Any, inputs: Any, **dimensions: int) -> LoadedModel:
        name = live_model.save(model, inputs, tmp_path)
        monkeypatch.setenv(LIVE_MODEL, str(tmp_path))
        family = models.find(name)
        return family.load(family.resolve(dimensions), 0)

    return take


Take = Callable[..., LoadedModel]


def test_module_comes_with_its_weights_and_buffers(taken: Take) -> None:
    module, inputs = Tied().train(), torch.randn(4, 8)
    loaded = taken(module, inputs)
    assert torch.equal(loaded.module(inputs), module(inputs))
    assert loaded.module.first.weight is loaded.module.last.weight
    assert torch.equal(loaded.inputs[0].tensors()[0], inputs)


def test_description_is_the_docstring_of_its_own_class(taken: Take) -> None:
    for module, said in (
        (Tied(), Tied.__doc__),
        (nn.Identity(), "A placeholder identity operator"),
        (Bare(), "a live"),
    ):
        taken(module, torch.ones(1, 8))
        assert models.find(f"live:{type(module).__name__}").description.startswith(str(said))


class Bare(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_module_here_stays_as_it_is(taken: Take) -> None:
    module = Tied().train()
    module(torch.randn(4, 8)).sum().backward()
    gradient, version = module.first.weight.grad, module.first.weight._version
    inputs, by_value = torch.randn(4, 8, requires_grad=True) * 2, cloudpickle.list_registry_pickle_by_value()
    random = torch.get_rng_state()
    taken(module, inputs)
    assert module.training and module.first.weight.grad is gradient and module.first.weight._version == version
    assert torch.equal(torch.get_rng_state(), random)
    assert cloudpickle.list_registry_pickle_by_value() == by_value


def test_hooks_come_too(taken: Take) -> None:
    module = nn.Linear(8, 8)
    module.register_forward_hook(lambda module, args, output: output + 1)
    inputs = torch.randn(2, 8)
    assert torch.equal(taken(module, inputs).module(inputs), module(inputs))


def test_weights_are_mapped_and_not_copied(taken: Take, tmp_path: Path) -> None:
    loaded = taken(nn.Linear(1000, 1000), torch.randn(1, 1000))
    start = loaded.module.weight.data_ptr()
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    ranges = [(line, *(int(end, 16) for end in line.split()[0].split("-"))) for line in lines]
    (line,) = [line for line, low, high in ranges if low <= start < high]
    assert str(tmp_path) in line


def test_function_makes_the_model_of_each_size(taken: Take) -> None:
    def factory(width: int = 8, seed: int = 3) -> tuple[nn.Module, torch.Tensor]:
        return nn.Linear(width, 2), torch.randn(1, width)

    loaded = taken(factory, None, width=16)
    assert loaded.module.in_features == 16


def test_function_may_take_its_inputs_from_the_caller(taken: Take) -> None:
    inputs = torch.randn(1, 4)
    assert torch.equal(taken(lambda: nn.Linear(4, 2), inputs).inputs[0].tensors()[0], inputs)


def test_parameter_of_a_function_needs_a_default(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'width' of this one has no default: .*width=8.*the forward of a"):
        live_model.save(lambda width: nn.Linear(width, 2), None, tmp_path)


def test_compiled_module_comes_without_its_compiler(taken: Take) -> None:
    loaded = taken(torch.compile(nn.Sequential(torch.compile(nn.Linear(8, 8)))), torch.randn(1, 8))
    assert type(loaded.module) is nn.Sequential and type(loaded.module[0]) is nn.Linear
    assert loaded.unwrapped == ("torch.compile",)


def test_scripted_part_comes_along(taken: Take) -> None:
    inputs, module = torch.randn(1, 8), nn.Sequential(torch.jit.script(nn.Linear(8, 8)))
    assert torch.equal(taken(module, inputs).module(inputs), module(inputs))


def test_class_of_a_module_that_no_worker_can_import_travels_by_value(taken: Take, tmp_path: Path) -> None:
    file = tmp_path / "elsewhere" / "hidden_layers.py"
    file.parent.mkdir()
    file.write_text("from torch import nn\nclass Hidden(nn.Linear):\n    def extra(self): return 5\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location("hidden_layers", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hidden_layers"] = module
    spec.loader.exec_module(module)
    hidden = module.Hidden(4, 4)
    name = live_model.save(hidden, torch.randn(1, 4), tmp_path)
    code = f"from bakeoff import models; print(models.find({name!r}).load({{}}, 0).module.extra())"
    assert python(code, **{LIVE_MODEL: str(tmp_path)}) == "5\n"


class Encoder(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def encoder_with(name: str, value: object) -> nn.Module:
    encoder = Encoder()
    setattr(encoder, name, value)
    return nn.Sequential(encoder)


def test_a_search_path_stays_what_it_was_when_the_program_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("lib")
    assert importlib.util.find_spec("no_such_module_anywhere") is None
    monkeypatch.chdir("/")
    assert str(tmp_path / "lib") in live_model.own_search_path()


def test_what_cannot_travel_is_told_by_its_path(tmp_path: Path) -> None:
    log = (tmp_path / "log.txt").open("w", encoding="utf-8")
    lock = threading.Lock()
    cases = {
        "model.0.log is an open file": encoder_with("log", log),
        "model.0.state['guard'] is a lock": encoder_with("state", {"guard": lock}),
        "model.0.pick, which uses 'lock': that is a lock": encoder_with("pick", lambda: lock),
        "model._forward_hooks": nn.Sequential(),
        "model.0.rows is a generator": encoder_with("rows", (each for each in ())),
    }
    cases["model._forward_hooks"].register_forward_hook(lambda *_: log.flush())
    with log:
        for path, module in cases.items():
            with pytest.raises(UsageError) as told:
                live_model.save(module, torch.ones(1), tmp_path)
            assert str(told.value).startswith(path), told.value
            assert "which no other process can have" in str(told.value)


def test_model_is_gone_with_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LIVE_MODEL, raising=False)
    with pytest.raises(UsageError, match=r"call bakeoff\.compare again"):
        models.find("live:Net")


NOTEBOOK = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x * FACTOR

FACTOR = {factor}
"""


def test_equal_code_has_one_digest(tmp_path: Path) -> None:
    """Otherwise no build of an earlier run would be found, or one of other code."""

    def digest(factor: int) -> str:
        notebook: dict[str, Any] = {"__name__": "__main__"}
        exec(NOTEBOOK.format(factor=factor), notebook)
        live_model.save(notebook["Net"](), torch.ones(1), tmp_path)
        return About.model_validate_json((tmp_path / live_model.ABOUT).read_bytes()).code

    assert digest(2) == digest(2) != digest(3)


def test_a_pipeline_travels_with_its_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"a": 1.0, "b": 2.0}
    pipeline = Pipeline(lambda text: torch.tensor([[words[each] for each in text]]), nn.Linear(2, 2), torch.argmax)
    name = live_model.save(pipeline, "ab", tmp_path)
    monkeypatch.setenv(LIVE_MODEL, str(tmp_path))
    loaded = live_model.LiveModel(name).load({}, 0)
    assert name == "live:Linear"
    assert loaded.inputs[0].args[0].tolist() == [[1.0, 2.0]]
    assert loaded.around is not None
    assert loaded.around.raw == "ab"


def test_a_function_that_evaluates_comes_with_what_it_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = torch.arange(4)

    def top1(predict: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"top1": predict(labels) == labels}

    top1.higher_is_better = {"top1": True}  # type: ignore[attr-defined]
    name = live_model.save_evaluate(top1, tmp_path)
    with pytest.raises(UsageError, match="is not kept"):
        models.find_evaluate(name)
    monkeypatch.setenv(LIVE_MODEL, str(tmp_path))
    found: Any = models.find_evaluate(name)
    assert name == "live:top1" and found.higher_is_better == {"top1": True}
    assert found(lambda given: given)["top1"].all() and found is not top1


def test_a_function_that_cannot_travel_is_refused_by_its_part(tmp_path: Path) -> None:
    lock = threading.Lock()

    def evaluate(predict: object) -> dict[str, bool]:
        return {"is_free": lock.acquire(blocking=False)}

    with pytest.raises(UsageError, match="evaluate, which uses 'lock': that is a lock"):
        live_model.save_evaluate(evaluate, tmp_path)
