"""The TensorRT backend on a real TensorRT: types, inputs of all forms, ranges, contexts, profiles and artefacts."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bakeoff
from bakeoff.backends import tensorrt as ours
from bakeoff.backends.ranges import OpenAxis
from bakeoff.measuring.worker.cell_model import move_to_device
from bakeoff.models.base import Inputs, LoadedModel
from bakeoff.records.device import Device
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell, Report, Status
from bakeoff.truth import accuracy
from bakeoff.truth.calls import run_eager
from bakeoff.truth.errors import errors_of_eager
from bakeoff.truth.reference import Reference
from tests.backends.building import Built, built
from tests.support.measuring import by_label, measure

trt = pytest.importorskip("tensorrt")

pytestmark = pytest.mark.gpu

EXAMPLES = Path(__file__).parents[2] / "examples"


def a_cell(mode: str = "default", precision: str = "fp32") -> Cell:
    return Cell(model="mlp", device=Device("cuda"), backend="tensorrt", mode=mode, precision=Precision(precision))


def loaded(module: nn.Module, *sets: tuple[Tensor, ...]) -> LoadedModel:
    return LoadedModel(module.eval(), tuple(Inputs(tensors) for tensors in sets))


def call(one: Built, *tensors: Tensor) -> tuple[Tensor, ...]:
    return one.call(Inputs(tensors))


def relative_rmse(found: Tensor, expected: Tensor) -> float:
    found, expected = found.double(), expected.double()
    return float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt())


class Norms(nn.Module):
    """A norm in float32 between products, as Llama has: in float16 its squares overflow."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        wide = (self.up(x) * 300).to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.down(wide.to(x.dtype))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("precision", "low", "high"), [("fp32", 1e-9, 2e-6), ("tf32", 2e-5, 1e-2), ("fp16", 5e-5, 5e-3)]
)
def test_the_error_is_the_precisions(precision: str, low: float, high: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(16, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 14 * 14, 256))
    images = tuple((torch.randn(8, 16, 16, 16),) for _ in range(2))
    exact = module.double()(images[0][0].double())
    with built(a_cell(precision=precision), tmp_path, loaded(module.float(), *images)) as one:
        (found,) = one.call(one.sets[0])
        told = one.compiled.precision()
        assert low < relative_rmse(found.cpu(), exact) < high
        assert told["tensorrt_tf32"] is (precision == "tf32")
        assert ("fp16" in str(told["tensorrt_layers"])) is (precision == "fp16")


def test_layers_in_float32_stay_so_in_half_precision(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sets = tuple((torch.randn(4, 64),) for _ in range(2))
    with built(a_cell(precision="fp16"), tmp_path, loaded(Norms(), *sets)) as one:
        (found,), (eager,) = one.call(one.sets[0]), one.eager(one.sets[0])
        assert torch.isfinite(found).all() and relative_rmse(found, eager) < 5e-3
        assert "fp32" in str(one.compiled.precision()["tensorrt_layers"])


class Types(nn.Module):
    def forward(self, numbers: Tensor, flags: Tensor, places: Tensor) -> tuple[Tensor, ...]:
        taken = numbers[places]
        return taken, taken.argmax(-1), flags & (taken.sum(-1) > 0), places + 1, numbers[:0]


@pytest.mark.parametrize("mode", ["default", "cuda-graph"])
def test_types_of_inputs_and_outputs_are_the_models(mode: str, tmp_path: Path) -> None:
    """A CUDA graph reads the copies of inputs that TensorRT cannot read itself, such as int64 before version 10."""
    sets = tuple((torch.randn(8, 4), torch.rand(3) > 0.5, torch.randint(0, 8, (3,))) for _ in range(3))
    with built(a_cell(mode), tmp_path, loaded(Types(), *sets)) as one:
        for inputs in one.sets:
            found, eager = one.call(inputs), one.eager(inputs)
            assert [each.dtype for each in found] == [each.dtype for each in eager]
            torch.testing.assert_close(found, eager)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda x: x[:, :1].expand(x.shape),
    "not aligned": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
}


@pytest.mark.parametrize("mode", ["default", "cuda-graph"])
def test_inputs_of_all_layouts_are_read_rightly(mode: str, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    sets = tuple((torch.randn(2, 4, 8),) for _ in range(2))
    with built(a_cell(mode), tmp_path, loaded(module, *sets)) as one:
        for layout in LAYOUTS.values():
            given = Inputs((layout(torch.randn(2, 4, 8, device="cuda")),))
            torch.testing.assert_close(one.call(given), one.eager(given))


def test_a_graph_over_a_strided_example_reads_later_inputs(tmp_path: Path) -> None:
    sets = tuple((torch.randn(2, 8, 4).transpose(1, 2),) for _ in range(3))
    with built(a_cell("cuda-graph"), tmp_path, loaded(nn.Sequential(nn.Linear(8, 8)), *sets)) as one:
        for inputs in one.sets:
            torch.testing.assert_close(one.call(inputs), one.eager(inputs))


def test_one_engine_serves_a_range_of_sizes_in_two_contexts(tmp_path: Path) -> None:
    axes = (OpenAxis(tensor=0, axis=0, dimensions=("batch",), low=1, high=32),)
    module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    with built(a_cell(), tmp_path, loaded(module, (torch.randn(4, 16),)), open_axes=axes) as one:
        other = one.compiled.instance()
        for batch in (1, 4, 32, 1):
            first, second = (Inputs((torch.randn(batch, 16, device="cuda"),)) for _ in range(2))
            one.compiled.bind(first)
            other.bind(second)
            one.compiled.run()
            other.run()
            one.clock.synchronise()
            torch.testing.assert_close(one.compiled.outputs(), one.eager(first))
            torch.testing.assert_close(other.outputs(), one.eager(second))
        with pytest.raises(bakeoff.BakeoffError, match="did not take the shape"):
            call(one, torch.randn(33, 16, device="cuda"))
        other.close()
        assert one.compiled.placement() is not None


def test_an_operator_without_an_older_form_is_named(tmp_path: Path) -> None:
    if not ours.is_weakly_typed(trt):
        pytest.skip("this TensorRT reads later opsets")
    with (
        pytest.raises(bakeoff.BakeoffError, match="reads 17: Mish cannot be written in that"),
        built(a_cell(), tmp_path, loaded(nn.Mish(), (torch.randn(2, 4),))),
    ):
        pass


def test_running_out_of_memory_is_reported_from_other_failures(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4096, 4096), nn.Linear(4096, 4096))  # 134 MB of weights
    sets = tuple((torch.randn(64, 4096),) for _ in range(2))
    device = torch.device("cuda")
    with built(a_cell(), tmp_path, loaded(module, *sets)) as one:
        context = one.context
    free, _ = torch.cuda.mem_get_info(device)
    held = torch.empty(free - 100_000_000, dtype=torch.uint8, device=device)
    try:
        with pytest.raises(MemoryError):
            ours.TensorRT().load(Inputs(sets[0]), context)
    finally:
        del held
        torch.cuda.empty_cache()


def test_a_profile_names_modules_and_adds_up_to_the_call(tmp_path: Path) -> None:
    module = nn.Sequential(*(nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(8)))
    sets = tuple((torch.randn(2048, 2048),) for _ in range(2))
    with built(a_cell(), tmp_path, loaded(module, *sets), for_profile=True) as one:
        times_us = []
        for _ in range(10):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(one.clock.stream)
            one.compiled.run()
            end.record(one.clock.stream)
            one.clock.synchronise()
            times_us.append(begin.elapsed_time(end) * 1000)
        profiler = one.compiled.profiler(one.module)
        assert profiler is not None
        with profiler:
            for _ in range(10):
                profiler.run()
            calls = profiler.calls()
    spans = calls[-1]
    names = {path for span in spans for path in span.modules}
    assert {f"{number}.0" for number in range(8)} <= names
    fastest_us = min(sum(span.lasted_us for span in call) for call in calls)
    assert fastest_us == pytest.approx(min(times_us), rel=0.1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    folder = tmp_path_factory.mktemp("tensorrt") / "run"
    model = f"{EXAMPLES}/two_heads.py:factory"
    names = ("eager", "tensorrt", "tensorrt/cuda-graph")
    return folder, measure(folder, *names, devices=["cuda"], models=[model])


@pytest.mark.parametrize("label", ["tensorrt", "tensorrt/cuda-graph"])
def test_what_is_exported_answers_as_the_run_did(label: str, run: tuple[Path, Report], tmp_path: Path) -> None:
    """Both loaders give the same bits: the script, which needs no Bakeoff, and `bakeoff.load`."""
    folder, report = run
    record = by_label(report)[label]
    assert record.status is Status.OK, f"{record.reason}\n{record.log_tail}"
    out = tmp_path / "shipped"
    command = [sys.executable, "-m", "bakeoff", "export", str(folder), label, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    check = (
        "import json\n"
        "from pathlib import Path\n"
        "from runtime import folder\n"
        "description = folder.read(Path())\n"
        "folder.set_process_up(Path(), description)\n"
        "measured = folder.Measured(Path(), description)\n"
        "measured.answer(0)\n"
        "print(json.dumps([output.double().cpu().flatten().tolist() for output in measured.execution.results()]))\n"
    )
    alone = subprocess.run([sys.executable, "-c", check], cwd=out, capture_output=True, text=True, timeout=200)
    assert alone.returncode == 0, alone.stderr
    measured = subprocess.run([sys.executable, "load.py"], cwd=out, capture_output=True, text=True, timeout=200)
    assert measured.returncode == 0 and "is right" in measured.stdout, measured.stdout + measured.stderr
    shipped = bakeoff.load(out)
    args, kwargs = shipped.sample_call(shipped.sample_tensors())
    answers = shipped.tensors_of(shipped(*args, **kwargs))
    assert [answer.double().cpu().flatten().tolist() for answer in answers] == json.loads(alone.stdout)


def test_a_planted_wrong_epsilon_is_found(tmp_path: Path) -> None:
    """The engine's outputs are compared as a run compares them, once with the model's epsilon and once with another."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 8))
    sets = tuple((torch.randn(16, 64),) for _ in range(2))
    model = loaded(module, *sets)
    with torch.inference_mode():
        exact = run_eager(*move_to_device(model, a_cell(), torch.float64))
        eager = run_eager(*move_to_device(loaded(module.float(), *sets), a_cell()))
        reference = Reference(exact, *errors_of_eager(eager, exact))
    for epsilon, passes in ((1e-5, True), (1e-3, False)):
        module[1].eps = epsilon
        folder = tmp_path / str(epsilon)
        folder.mkdir()
        with built(a_cell(), folder, loaded(module, *sets)) as one:
            found = tuple(one.call(inputs) for inputs in one.sets)
        assert accuracy.check(found, reference, Precision.FP32).passed is passes
