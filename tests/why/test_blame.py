"""`bakeoff blame` names the smallest part of a model that loses precision or fails alone, and writes its script."""

from __future__ import annotations

import ast
import contextlib
import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bakeoff import backends
from bakeoff.backends.base import BuildContext
from bakeoff.backends.eager import Eager
from bakeoff.measuring.worker.clock import Clock
from bakeoff.measuring.worker.precision import dtype_of
from bakeoff.models.base import Inputs
from bakeoff.records import report_file
from bakeoff.records.device import CPU
from bakeoff.records.errors import UsageError
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell, Status
from bakeoff.reports import markdown
from bakeoff.truth import rounding_limits
from bakeoff.why import failing_script
from bakeoff.why.blame_text import (
    MAX_ROWS,
    blocks_of,
    conclusion,
    figure,
    further_sentences,
    growth_sentence,
    script_sentence,
)
from bakeoff.why.controller import why_not_blamed
from bakeoff.why.records import Blame, Found, GrowthPoint, PartTrial, Script, largest_local
from bakeoff.why.worker_blame import Builder, Search
from bakeoff.why.worker_parts import Beside, ModelPart, in_float64, source_of
from tests.conftest import CommandLine
from tests.reports import samples
from tests.shipping.conftest import cell_of, record_of, report_on
from tests.support.modules import Calling
from tests.support.printed import printed


class Layer(nn.Module):
    def __init__(self, rounds: bool) -> None:
        super().__init__()
        self.norm, self.linear, self.rounds = nn.LayerNorm(32), nn.Linear(32, 32), rounds

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.linear(self.norm(x)))
        return x + (y.to(torch.bfloat16).to(x.dtype) if self.rounds else y)


class Net(nn.Module):
    def __init__(self, rounds: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(rounds and number == 3) for number in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Bessel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x * 2.0) + 1.0


@contextlib.contextmanager
def phase(name: str) -> Any:
    yield


def surroundings(
    model: nn.Module, backend: str, folder: Path, precision: Precision, *inputs: Inputs
) -> tuple[Builder, ModelPart, tuple[Inputs, ...]]:
    """Return what a worker gives a search, in this process: what builds, the whole model, its inputs in float64."""
    cell, dtype = Cell(model="mlp", backend=backend, precision=precision), dtype_of(precision)
    worker: Any = SimpleNamespace(
        cell=cell,
        backend=backends.create(backend),
        workspace=folder,
        context=lambda sets: BuildContext(cell, phase, folder, 1, sets),
        running=torch.inference_mode,
        clock=Clock(CPU),
        phases=SimpleNamespace(announce=lambda name: None),
    )
    rounded = copy.deepcopy(model.eval()).to(dtype)
    exact = tuple(each.map(in_float64) for each in inputs)
    sets = tuple(each.map(lambda tensor: tensor.to(dtype)) for each in inputs)
    return Builder(worker, sets), ModelPart("", type(model).__name__, rounded, model.double(), exact[0]), exact


def searched(
    model: nn.Module, backend: str, folder: Path, looks_for_failure: bool = False, precision: Precision = Precision.FP32
) -> Blame:
    torch.manual_seed(0)
    builder, whole, _ = surroundings(model, backend, folder, precision, Inputs((torch.randn(8, 32),)))
    with torch.no_grad():
        return Search(builder, whole, looks_for_failure).result()


def blamed(**known: Any) -> Blame:
    """Return what was found in a cell of eager: a place, if nothing else is said."""
    usual = {"label": "eager", "cell_id": "", "precision": "fp32", "looks_for_failure": False, "found": Found.PLACE}
    return Blame(**{**usual, **known})


@pytest.mark.parametrize("backend", ["eager", "torchscript", pytest.param("openvino", marks=pytest.mark.slow)])
def test_planted_rounding_is_named_with_its_line(backend: str, tmp_path: Path) -> None:
    blame = searched(Net(rounds=True), backend, tmp_path)
    assert blame.found is Found.PLACE and blame.place is not None
    assert blame.place.name == "layers.3: aten.to.dtype"
    assert "test_blame.py, line " in blame.line and blame.line.endswith("in forward")
    assert "Eager loses as much" in conclusion(blame)
    # the whole, the layers beside each other, those in layers.3, its operators, and the whole with all outputs
    assert blame.builds == 5
    largest = largest_local(blame.growth)
    assert largest is not None and largest[0].name == "layers.3" and largest[1] > 0.99
    accumulated = [point.accumulated or 0.0 for point in blame.growth]
    assert len(accumulated) == 8 and max(accumulated[:3]) < 1e-6 and min(accumulated[3:]) > 1e-4


@pytest.mark.parametrize("backend", ["eager", "torchscript"])
def test_a_clean_model_names_nothing(backend: str, tmp_path: Path) -> None:
    blame = searched(Net(rounds=False), backend, tmp_path)
    assert blame.found is Found.NOTHING and blame.place is None and blame.builds == 3
    assert conclusion(blame).endswith("No part is to blame.")
    wrong = blame.but(in_run="the trace froze a choice at net.py, line 9")
    assert conclusion(wrong).endswith("for another reason: the trace froze a choice at net.py, line 9")
    assert growth_sentence(blame).startswith("No module has most of the error: ")
    assert "layers.7" in (figure(blame) or "")


def grown(*errors: tuple[str, float | None, float | None]) -> Blame:
    return blamed(growth=[GrowthPoint(name=name, kind="Linear", local=a, accumulated=b) for name, a, b in errors])


def test_an_error_that_leaves_the_finite_numbers_is_named_where_it_does() -> None:
    """The module whose own code overflows may have no local error, and the small ones of the others are even."""
    even = [(name, 1e-4, 1e-4) for name in "abcd"]
    assert growth_sentence(grown(*even)).startswith("No module has most of the error: ")
    assert growth_sentence(grown(*even, ("e", 1e-2, 1e-2))).startswith("e has most of the error: 1.0e-04 after a, ")
    assert growth_sentence(grown(*even, ("e", None, float("nan")))) == (
        "The error is not finite from e on: 1.0e-04 after a, nan after e."
    )


def test_nothing_is_said_of_the_growth_along_a_few_modules() -> None:
    few, unknown = grown(("a", 1.0, 1.0), ("b", 9.0, 9.0)), grown(*((name, 1e-4, None) for name in "abcd"))
    assert growth_sentence(few) == ""
    assert "Errors of modules along the model" in (figure(few) or "")
    assert growth_sentence(unknown) == (
        "Of the squared errors of 4 modules, each called alone, a has 25 %, the largest share."
    )


class Twice(nn.Module):
    """Rounds deep in one layer, and in its own code."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(Layer(False), Layer(True)), nn.Sequential(Layer(False))])

    def forward(self, x: Tensor) -> Tensor:
        for block in (*self.blocks, self.blocks[0]):
            x = block(x)
        return x.to(torch.bfloat16).float()


def test_every_place_that_loses_precision_is_named_once(tmp_path: Path) -> None:
    blame = searched(Twice(), "eager", tmp_path)
    assert blame.place is not None and blame.place.name == "blocks.0.1: aten.to.dtype"
    assert [(each.name, each.line != blame.line) for each in blame.others] == [("aten.to.dtype", True)]
    assert blame.is_complete
    assert "Precision is also lost in aten.to.dtype, operator (test_blame.py, line " in further_sentences(blame)
    assert blame.repeated == ["blocks.0 (call 2)"]
    assert "is beyond its limit, too, and runs the same code." in further_sentences(blame)


class FailingEager(Eager):
    """Fails on what calls bessel_j0 or expm1, with the names of those that a build contains."""

    def build(self, module: nn.Module, inputs: Inputs, context: BuildContext) -> Any:
        program = torch.export.export(module, inputs.args, inputs.kwargs)
        names = {str(node.target) for node in program.graph.nodes}
        if refused := sorted(names & {"aten.special_bessel_j0.default", "aten.expm1.default"}):
            raise ValueError(f"no conversion of {', '.join(refused)}")
        return super().build(module, inputs, context)


class Exponential(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.expm1(x) * 2.0


def failing(*layers: nn.Module, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Blame:
    monkeypatch.setattr(backends, "create", lambda name: FailingEager())
    return searched(nn.Sequential(*layers), "eager", folder, looks_for_failure=True)


def test_every_operator_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = nn.Linear(32, 32), Bessel(), nn.ReLU(), Exponential()
    blame = failing(*layers, folder=tmp_path, monkeypatch=monkeypatch)
    assert blame.place is not None and blame.place.name == "1: aten.special_bessel_j0.default"
    assert further_sentences(blame).startswith("3: aten.expm1.default, operator (test_blame.py, line ")
    assert further_sentences(blame).endswith("fails, too: ValueError: no conversion of aten.expm1.default.")
    assert blame.is_complete and not blame.same_failures


def test_parts_that_fail_in_the_same_words_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blame = failing(Bessel(), Bessel(), Bessel(), folder=tmp_path, monkeypatch=monkeypatch)
    assert not blame.others and blame.same_failures == 2
    assert further_sentences(blame) == "2 more parts fail in the same words, and may hide others."


def test_further_parts_are_looked_for_in_so_many_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bakeoff.why.worker_blame.MIN_FURTHER_BUILDS", 0)
    blame = failing(*(Bessel() for _ in range(32)), folder=tmp_path, monkeypatch=monkeypatch)
    first = [trial.name for trial in blame.trials].index("0: aten.special_bessel_j0.default")
    assert blame.builds <= 2 * (first + 1) + 16
    assert not blame.is_complete and "there may be more" in further_sentences(blame)


def test_what_does_not_fail_has_no_script(tmp_path: Path) -> None:
    file = tmp_path / "s.py"
    clean = blamed(found=Found.NOTHING)
    assert script_sentence(clean, None) == ""
    assert script_sentence(clean, file) == f"{file} was not written: nothing fails."
    failed = blamed(looks_for_failure=True, script=Script(text="", fails_alike=True, ending=""))
    assert script_sentence(failed, None).endswith("--script FILE keeps it.")
    assert script_sentence(failed, file).endswith(f"It is in {file}.")


def test_a_model_that_fails_in_eager_is_to_blame_itself(tmp_path: Path) -> None:
    wrong = Calling(lambda _, x: x @ torch.zeros(7, 7))
    blame = searched(wrong, "eager", tmp_path, looks_for_failure=True)
    assert blame.model_fails and not blame.builds
    assert conclusion(blame).startswith("eager: the model itself fails, so that no backend is to blame: eager: Runtime")
    assert script_sentence(blame, Path("s.py")) == "s.py was not written: the model itself fails."
    assert not searched(nn.Linear(32, 32), "eager", tmp_path, looks_for_failure=True).model_fails


def test_a_cell_that_was_refused_before_it_was_built_is_not_searched() -> None:
    cell = Cell(model="mlp", backend="onnx", precision=Precision.FP16)
    reason = why_not_blamed(samples.failed(cell, Status.UNSUPPORTED, "no fp16 kernels"))
    assert reason.startswith("it was refused before it was built: ONNX Runtime's CPU provider has no fp16")


class Overflowing(nn.Module):
    """Leaves the range of float16 in the middle of its layers, and comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.middle, self.after = Layer(False), Peak(), Layer(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.middle(self.before(x)))


class Peak(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.up(x) * 1e5)
        return y / 1e5


def test_an_overflow_is_named_where_it_begins(tmp_path: Path) -> None:
    blame = searched(Overflowing(), "eager", tmp_path, precision=Precision.FP16)
    assert blame.place is not None and blame.place.name == "middle: aten.mul.Tensor"
    down = next(trial for trial in blame.trials if trial.name == "middle.down")
    assert "beyond the range of fp16" in down.failure and down.excess == 0
    said = conclusion(blame)
    assert "precision is lost in middle: aten.mul.Tensor" in said and "returns values that are not finite" in said
    assert said.endswith("Eager loses as much, so that the model itself does it.")


class Shared(nn.Module):
    """Calls one module twice, by keywords, and returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Scaled()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        first = self.block(x=x, scale=1.0)
        return {"first": first, "second": self.block(x=first * 1e4, scale=1e3)}


class Scaled(nn.Module):
    def forward(self, x: Tensor, scale: float) -> Tensor:
        return x * scale


def test_calls_of_a_shared_module_are_told_apart(tmp_path: Path) -> None:
    blame = searched(Shared(), "eager", tmp_path, precision=Precision.FP16)
    assert blame.place is not None and blame.place.name == "block (call 2): aten.mul.Tensor"
    assert [point.name for point in blame.growth] == ["block", "block (call 2)"]


class CachedLayer(Layer):
    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        y = super().forward(x)
        if cache is not None:
            y = y + cache.states.get(self, torch.zeros_like(y))
            cache.states[self] = y
        return y


class Cache:
    def __init__(self) -> None:
        self.states: dict[nn.Module, Tensor] = {}


class CachedNet(Net):
    """Gives its layers an object that they write into."""

    def __init__(self, rounds: bool) -> None:
        super().__init__(rounds)
        self.layers = nn.ModuleList(CachedLayer(rounds and number == 3) for number in range(8))

    def forward(self, x: Tensor) -> Tensor:
        cache = Cache()
        for layer in self.layers:
            x = layer(x, cache)
        return x


def test_modules_that_get_a_cache_are_searched_without_it(tmp_path: Path) -> None:
    blame = searched(CachedNet(rounds=True), "eager", tmp_path)
    assert blame.place is not None and blame.place.name == "layers.3: aten.to.dtype"
    assert not any(trial.eager_fails for trial in blame.trials)


class Steep(nn.Module):
    """Adds an error of a few roundings that its neighbours add, too."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(Slightly() for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x) * 1.0
        return x


class Slightly(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (1.0 if x.dtype == torch.float64 else 1 + 1.4e-5)


def test_an_error_without_a_place_is_said_to_grow(tmp_path: Path) -> None:
    blame = searched(Steep(), "eager", tmp_path)
    assert blame.found is Found.SPREAD
    assert "the error has no single place" in conclusion(blame)


@pytest.mark.slow
def test_the_operator_that_fails_alone_is_named(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), Bessel())
    blame = searched(model, "onnx", tmp_path, looks_for_failure=True)
    assert blame.place is not None and blame.place.name == "2: aten.special_bessel_j0.default"
    assert "bessel_j0" in blame.place.failure
    assert "torch.ops.aten.special_bessel_j0.default(" in blame.source
    row = r"| 2: aten.special\_bessel\_j0.default (test\_blame.py, line "
    assert row in markdown.render(blocks_of(blame, tmp_path))


def test_a_part_is_written_with_torch_alone() -> None:
    module, inputs = Scaling(3).eval(), Inputs((torch.randn(8, 32).double(),), {"offset": torch.ones(32).double()})
    part = ModelPart("", "Scaling", module, copy.deepcopy(module).double(), inputs)
    namespace: dict[str, Any] = {}
    exec(source_of(part, torch.float32), namespace)
    model, (x, offset) = namespace["model"], namespace["inputs"]
    with torch.no_grad():
        for weight in (*model.buffers(), *module.parameters()):
            weight.fill_(0.01)
        assert torch.equal(model(x, offset)[0], module(x, offset=offset))


def called_with_ones(function: Callable[..., Any]) -> ModelPart:
    module = Calling(function)
    return ModelPart("", "Calling", module, module, Inputs((torch.ones(2).double(),)))


def test_what_torch_does_not_export_has_no_source() -> None:
    part = called_with_ones(lambda _, x: x if x.sum() > 0 else -x)
    assert source_of(part, torch.float32) == ""


def test_a_part_that_returns_nothing_fails_with_what_it_returned() -> None:
    with pytest.raises(TypeError, match="the model returned None"):
        Beside([called_with_ones(lambda _, x: None)])(torch.ones(2))


HALF = 0.5


def halved(x: Tensor) -> Tensor:
    return x * HALF


class Scaling(nn.Module):
    def __init__(self, times: int) -> None:
        super().__init__()
        self.times, self.layers = times, nn.ModuleList([nn.Linear(32, 32), Layer(True)])
        self.bias = nn.Parameter(torch.zeros(32))

    def forward(self, x: Tensor, offset: Tensor) -> Tensor:
        for layer in self.layers:
            x = halved(layer(x)) * self.times + self.bias
        return x + offset


def test_eager_excuses_a_part_only_so_far() -> None:
    def limit(eager_rmse: float) -> float:
        return rounding_limits.blame_limit(Precision.FP32, eager_rmse, 1.0)

    assert limit(0.0) == rounding_limits.rounding_floor(Precision.FP32, 1.0)
    assert limit(3e-6) == pytest.approx(1.2e-5)
    assert limit(1.0) == limit(1e-4) == pytest.approx(256 * 2.0**-23)


ODD = """
import torch
from torch import nn


class Bessel(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x) + 1.0


def make():
    return nn.Sequential(nn.Linear(8, 8), Bessel()), torch.randn(4, 8)
"""


@pytest.mark.slow
def test_the_script_of_a_failure_ends_as_the_cell_did(command_line: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    cell = samples.cell("onnx", model="odd.py:make")
    report = samples.report([samples.failed(cell, Status.UNSUPPORTED, "ONNX has no function for it")])
    asked = {"models": ["odd.py:make"], "backends": ["onnx"], "devices": ["cpu"]}
    report_file.write_json(report.but(request=asked), tmp_path / "run")
    status, out, _ = command_line("blame", tmp_path / "run", "onnx", "--script", tmp_path / "failing.py")
    assert status == 1 and "the smallest part that fails alone is 1: aten.special" in out
    assert "A script made from its traced graph, run without Bakeoff, fails in the same way." in out
    without = "import runpy, sys; sys.modules['bakeoff'] = None; runpy.run_path(sys.argv[1])"
    command = [sys.executable, "-I", "-c", without, tmp_path / "failing.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode and "eager returns" in done.stdout and "bessel_j0" in done.stderr


def test_operators_of_one_name_have_their_line_in_the_table() -> None:
    errors = {"error": 0.1, "eager_error": 0.0, "limit": 0.01}
    lines = [f"mine.py, line {line}, in forward" for line in (9, 12)]
    casts = [PartTrial(name="norm: aten.to.dtype", kind="operator", line=line, **errors) for line in lines]
    table = printed(
        blocks_of(blamed(trials=[PartTrial(name="", kind="Net", **errors), *casts]), Path()), is_terminal=False
    )
    assert all(f"norm: aten.to.dtype ({line})" in table for line in lines)


def test_a_terminal_says_which_parts_it_leaves_out() -> None:
    """Those are further below their limits, where nothing is beyond."""
    parts = [
        PartTrial(name=f"part{place}", kind="Net", error=place / 100, limit=1.0) for place in range(1, MAX_ROWS + 2)
    ]
    blame = blamed(found=Found.NOTHING, trials=[PartTrial(name="", kind="Net", error=0.01, limit=1.0), *parts])
    page = printed(blocks_of(blame, Path()), is_terminal=True)
    assert "part1 " not in page and "part13" in page
    assert "2 more parts were tried, with a smaller error / limit: --out FILE has all." in page


PART = "model, inputs = torch.nn.Linear(2, 2), (torch.ones(1, 2),)"
LABELS = [f"{name}/{mode}" for name in backends.TABLE for mode in backends.create(name).mode_names()]


def script_of(label: str, text: str = "", **fields: object) -> str:
    record = record_of(label, cell=fields, command=text)
    report = report_on(record, hostname=text, variables={f"OMP_{text}": text})
    return failing_script.script_of_part(report, record, PART, f"it fails {text}")


@pytest.mark.parametrize(
    ("device", "precision"),
    [
        *(("cpu", "fp32"), ("cuda:1", "bf16")),
        *(pytest.param(*other, marks=pytest.mark.slow) for other in (("cpu", "bf16"), ("cuda:1", "fp32"))),
    ],
)
def test_every_script_is_python_and_no_text_is_code(device: str, precision: str) -> None:
    hostile = "x\nraise SystemExit(1)\r\u2028\"\"\"'''\\"
    written = 0
    for label in LABELS:
        if backends.create(label.partition("/")[0]).script(cell_of(label), {}) is None:
            with pytest.raises(UsageError, match=r"no script does what .* does, only what eager, "):
                script_of(label)
            continue
        script = script_of(label, device=device, precision=precision)
        attacked = script_of(label, hostile, device=device, precision=precision)
        assert [type(node) for node in ast.parse(attacked).body] == [type(node) for node in ast.parse(script).body]
        written += 1
    assert written >= 30


def test_a_file_name_that_hides_the_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the script would import itself as 'onnxruntime': give the file another name"):
        failing_script.write_script(script_of("onnx"), tmp_path / "onnxruntime.py")
    assert not list(tmp_path.iterdir())
