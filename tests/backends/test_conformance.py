"""The promises of every backend to the harness, tested for every mode on every device that this machine has.

A new backend is covered by its row in `backends.TABLE`, and a third party's by being installed. To test one backend:

    python -m pytest tests/backends/test_conformance.py -k NAME
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bakeoff import backends
from bakeoff.backends.base import Availability
from bakeoff.backends.torch_kernels import ATTENTION, BENCHMARK
from bakeoff.measuring.worker.cell_model import load, move_to_device, training_of
from bakeoff.measuring.worker.host_memory import FromHost
from bakeoff.models.base import Inputs
from bakeoff.records.device import CPU, Device
from bakeoff.records.errors import Unavailable, Unsupported
from bakeoff.records.precision import Precision
from bakeoff.records.schema import HOST, INFERENCE, TASKS, TRAIN_STEP, Cell, Extent, Placement
from bakeoff.truth import accuracy
from bakeoff.truth.calls import Outputs, run_eager
from bakeoff.truth.errors import errors_of_eager
from bakeoff.truth.reference import Reference
from tests.backends.building import Built, built, tensors_of
from tests.support import cells as support

ROOT = Path(__file__).parents[2]

IMAGES = "images"
"""The model for modes that are for convolutions only."""

MODELS: dict[str, tuple[str, dict[str, int]]] = {
    "mlp": ("mlp", {"batch": 3, "features": 32, "hidden": 48}),
    "two_heads": (f"{ROOT / 'examples/two_heads.py'}:factory", {"batch": 6, "items": 50}),
    "keywords": (f"{ROOT / 'tests/backends/keywords.py'}:factory", {}),
    IMAGES: ("conv", {"batch": 2, "size": 8, "width": 4}),
}
"""One tensor in and out; several tensors, one of whole numbers; keywords out of order, a constant, nested outputs."""

OF_OTHER_TESTS = {"null-packaged", "planted"}
"""Backends of the tests' plug-in that add nothing to what `null` and `eager` show here, or are wrong on purpose."""

NAMES = [name for name in backends.names() if name not in OF_OTHER_TESTS]
CUDA = Device("cuda")
BUILD_PHASES = ("export", "compile", "load", "capture")

WAITS_FOR_LAST_CALL = {
    "aotinductor": "a package has one runner, which waits for its last call; single-threaded it does not"
}
"""Configurations that cannot enqueue a call while the device is busy with the one before it, with the reason."""

SLEEP_CYCLES = 400_000_000
"""About 0.2 s of an NVIDIA GPU's clock, which is hundreds of times what launching these models takes."""


TESTED_ELSEWHERE = ("surgical", "regional", "buckets", *ATTENTION)
"""Modes that need named targets, layers that repeat, an axis to pad or attention, which `MODELS` do not have."""


def configurations() -> Iterator[tuple[str, str, Device]]:
    """Yield every backend, mode and device that this machine has. CUDA comes first."""
    for device in (CUDA, CPU):
        for name in NAMES:
            backend = backends.create(name)
            if backend.available(device):
                # the other modes of the null backend misbehave on purpose, to test the harness
                for mode in ["default"] if name == "null" else backend.mode_names():
                    if mode not in TESTED_ELSEWHERE:
                        yield name, mode, device


def cell_of(backend: str, mode: str, device: Device, model: str = "mlp", task: str = INFERENCE) -> Cell:
    name, sizes = MODELS[model]
    return support.cell_of(name, backend, sizes, device=device, mode=mode, task=task)


LONG_BUILDS = {"aotinductor": "mlp", "inductor": "keywords"}
"""Backends that compile C++ for the CPU, and the model that they build in every run. The others are slow tests."""

ENOUGH_OTHER_MODELS = ("torchscript", "onnx", "openvino")
"""Backends whose other modes, and the model of one tensor, are slow tests: they build the two others in every run."""


def models_for(name: str, mode: str, device: Device) -> Iterable[str]:
    """Return the models to build. On the CPU, where building takes longest, modes share how their backend is called."""
    if backends.create(name).mode(mode).channels_last_of or mode == BENCHMARK.name:
        return [IMAGES]
    others = [model for model in MODELS if model != IMAGES]
    if device.is_cuda:
        return others
    return others if mode == "default" else ["keywords"]


def cells() -> Iterator[Any]:
    for backend, mode, device in configurations():
        for model in models_for(backend, mode, device):
            cell = cell_of(backend, mode, device, model)
            if backends.create(backend).supports(cell):
                is_quick = backend not in ENOUGH_OTHER_MODELS or (mode == "default" and model != "mlp")
                if backend in LONG_BUILDS:
                    is_quick = model == LONG_BUILDS[backend] and mode == "default"
                is_slow = not device.is_cuda and not is_quick
                marks = [*marks_for(device), *([pytest.mark.slow] if is_slow else [])]
                yield pytest.param(cell, id=f"{backend}/{mode}-{device}-{model}", marks=marks)


def marks_for(device: Device) -> list[pytest.MarkDecorator]:
    return [pytest.mark.gpu] if device.is_cuda else []


CELLS = list(cells())
CELLS_ON_CUDA = [case for case in CELLS if case.values[0].device.is_cuda]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every test that takes `one` all cells, or those on CUDA if it takes `stream` too."""
    if "one" in metafunc.fixturenames:
        cases = CELLS_ON_CUDA if "stream" in metafunc.fixturenames else CELLS
        metafunc.parametrize("one", cases, indirect=True, scope="module")


@pytest.fixture(scope="module")
def one(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """One cell, built once for all tests that take it."""
    cell: Cell = request.param
    try:
        with built(cell, tmp_path_factory.mktemp("artifact")) as compiled:
            yield compiled
    except (Unavailable, Unsupported) as error:  # found out while building
        pytest.skip(f"{cell.label} on {cell.device}: {error}")


@pytest.fixture
def stream(one: Built) -> torch.cuda.Stream:
    assert one.clock.stream is not None
    return one.clock.stream


def test_outputs_are_eagers(one: Built) -> None:
    for inputs in one.sets:
        same(one.call(inputs), one.eager(inputs))


def test_outputs_follow_inputs_that_building_never_saw(one: Built) -> None:
    fresh = unseen(one.sets[0])
    before, after = one.call(one.sets[0]), one.call(fresh)
    same(after, one.eager(fresh))
    assert any(not torch.equal(first, second) for first, second in zip(before, after, strict=True))


def test_outputs_are_tensors_of_their_own(one: Built) -> None:
    first, second = one.sets[:2]
    kept = one.call(first)
    same(one.call(second), one.eager(second))
    same(kept, one.eager(first), "a later call overwrote them")
    one.call(first)
    for tensor in one.compiled.outputs():
        tensor.zero_()
    same(one.compiled.outputs(), one.eager(first), "writing into them changed the backend's own")
    same(one.call_again(), one.eager(first), "writing into them changed the next call's")


def test_outputs_are_the_last_calls_whatever_was_bound_since(one: Built) -> None:
    first, second = one.sets[:2]
    one.call(first)
    one.compiled.bind(second)
    same(one.compiled.outputs(), one.eager(first))
    same(one.call_again(), one.eager(second))


def test_results_are_the_last_outputs(one: Built) -> None:
    same(one.call(one.sets[1]), tuple(one.compiled.results()))


def test_building_announces_its_phases_once_each(one: Built) -> None:
    assert set(one.phases) <= set(BUILD_PHASES)
    assert len(one.phases) == len(set(one.phases))


def test_nothing_is_left_to_compile(one: Built) -> None:
    before = one.compiled.compilations()
    for call in range(5):
        one.call(one.sets[call % len(one.sets)])
    assert one.compiled.compilations() == before


def test_building_and_calling_leave_weights_and_inputs_alone(one: Built) -> None:
    one.call(one.sets[0])
    now = tensors_of(one.module, one.sets[0])
    assert [tensor.dtype for tensor in now] == [tensor.dtype for tensor in one.before]
    assert all(torch.equal(tensor, was) for tensor, was in zip(now, one.before, strict=True))
    assert not one.module.training


LEAVES_OPERATORS = {
    "executorch": "XNNPACK has no embedding, and leaves it to ExecuTorch's portable kernels",
    "litert": "XNNPACK has no embedding, argmax or choice, and leaves them to LiteRT's own kernels",
}
"""Backends that place only a part of `MODELS` in their engine, with the reason."""


def test_placement_is_unknown_or_full(one: Built) -> None:
    one.call(one.sets[0])
    placement = one.compiled.placement()
    if placement is not None:
        assert Placement.model_validate(placement.model_dump(mode="json")) == placement
        if one.cell.backend in LEAVES_OPERATORS and placement.extent is Extent.PARTIAL:
            assert placement.fallbacks
            return
        assert (placement.extent, placement.fallbacks) == (Extent.FULL, [])


def test_settings_fit_into_a_record(one: Built) -> None:
    settings = one.compiled.settings()
    assert json.loads(json.dumps(settings)) == settings


@pytest.mark.gpu
def test_run_returns_while_the_device_is_busy(one: Built, stream: torch.cuda.Stream) -> None:
    one.call(one.sets[0])
    torch.cuda._sleep(SLEEP_CYCLES)
    one.compiled.run()
    still_busy = not stream.record_event().query()
    one.clock.synchronise()
    assert still_busy, "run() waited for the stream"


@pytest.mark.gpu
def test_calls_queue_on_the_stream(one: Built, stream: torch.cuda.Stream, request: pytest.FixtureRequest) -> None:
    if reason := WAITS_FOR_LAST_CALL.get(one.cell.label):
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    one.call(one.sets[0])
    torch.cuda._sleep(SLEEP_CYCLES)
    slept = stream.record_event()
    for _ in range(3):
        one.compiled.run()
    still_asleep = not slept.query()
    one.clock.synchronise()
    assert still_asleep, "run() waited for the call before it"


@pytest.mark.gpu
@pytest.mark.usefixtures("stream")
@pytest.mark.parametrize("is_pinned", [False, True], ids=["pageable", "pinned"])
def test_a_call_reads_what_was_copied_from_the_host(one: Built, is_pinned: bool) -> None:
    if refused := one.backend.supports(one.cell.model_copy(update={"inputs_from": HOST})).reason:
        pytest.skip(refused)
    given = unseen(one.sets[0])
    expected = tuple(tensor.cpu() for tensor in one.eager(given))
    called = FromHost(one.compiled, is_pinned)
    called.bind(given)
    for tensor in (*one.compiled.own_inputs(), *given.tensors()):
        tensor.detach().zero_()
    called.run()
    one.clock.synchronise()
    same(tuple(called.answers), expected)
    assert all(answer.is_pinned() == is_pinned for answer in called.answers)


@pytest.mark.gpu
@pytest.mark.usefixtures("stream")
def test_run_takes_its_turn_on_the_current_stream(one: Built) -> None:
    late, values = one.sets[0].map(torch.zeros_like), unseen(one.sets[0])
    one.call(late)
    torch.cuda._sleep(SLEEP_CYCLES)
    for tensor, value in zip(late.tensors(), values.tensors(), strict=True):
        tensor.copy_(value)
    one.compiled.bind(late)
    one.compiled.run()
    outputs = one.compiled.outputs()
    one.clock.synchronise()
    same(outputs, one.eager(values), "run() did not wait for what the stream held before it")


QUICK_TRAINING = ("eager",)
"""Configurations that are trained on the CPU in every run."""


def trained() -> Iterator[Any]:
    for backend, mode, device in configurations():
        for task in TASKS:
            cell = cell_of(backend, mode, device, task=task)
            if task == INFERENCE or not backends.create(backend).supports(cell):
                continue
            if mode in ("no-fast-path", BENCHMARK.name):  # the trained model has no such layers
                continue
            is_slow = not device.is_cuda and cell.label not in QUICK_TRAINING
            marks = [*marks_for(device), *([pytest.mark.slow] if is_slow else [])]
            yield pytest.param(cell, id=f"{cell.label}-{device}-{task}", marks=marks)


@pytest.mark.parametrize("cell", list(trained()))
def test_training_gives_what_float64_does(cell: Cell, tmp_path: Path) -> None:
    # the module's fixture may still be open, and it runs in inference mode
    with torch.inference_mode(False), built(cell, tmp_path) as one:
        training = one.context.training
        assert training is not None and training.module is one.module and one.module.training
        names = training.describe_outputs(one.sets[0])
        compilations = one.compiled.compilations()
        checks = [accuracy.check(restored(one), (known := reference_of(one)), Precision.FP32, names)]
        for inputs in one.sets * 2:
            one.call(inputs)
        checks.append(accuracy.check(restored(one), known, Precision.FP32, names))
        assert [check.passed for check in checks] == [True, True], checks
        assert one.compiled.compilations() == compilations
        assert one.compiled.settings().get("optimizer") == ("AdamW" if cell.task == TRAIN_STEP else None)
        placement = one.compiled.placement()
        assert placement is None or (placement.extent, placement.fallbacks) == (Extent.FULL, [])
        for name, part in one.compiled.stages():
            assert name in ("forward", "backward", "optimizer")
            part()


def restored(one: Built) -> list[Outputs]:
    """Return the results for every input set, each from the beginning of training."""
    found = []
    for inputs in one.sets:
        one.compiled.restore()
        found.append(one.call(inputs))
    one.compiled.restore()
    return found


def reference_of(one: Built) -> Reference:
    outputs = []
    for dtype in (torch.float64, torch.float32):
        model = load(one.cell)
        outputs.append(run_eager(*move_to_device(model, one.cell, dtype), training_of(model, one.cell)))
    return Reference(outputs[0], *errors_of_eager(outputs[1], outputs[0]))


@pytest.mark.parametrize("name", NAMES)
def test_a_backend_introduces_itself(name: str) -> None:
    backend = backends.create(name)
    assert backend.name == name == backends.canonical(name)
    assert backend.modes[0].name == "default" and len(set(backend.mode_names())) == len(backend.modes)
    assert backend.description and is_one_line(backend.description)


@pytest.mark.parametrize("name", NAMES)
def test_supports_answers_the_same_twice_and_refuses_what_nobody_does(name: str) -> None:
    backend = backends.create(name)
    for mode in backend.mode_names():
        for device in (CPU, CUDA, Device("cuda:1")):
            cell = cell_of(name, mode, device)
            answers = [backend.supports(cell), backend.supports(cell)]
            assert answers[0] == answers[1]
            assert all(is_an_answer(answer) for answer in answers)
        refused = backend.supports(cell_of(name, mode, CPU, task="juggling"))
        assert not refused and "juggling" in refused.reason


@pytest.mark.parametrize("name", [name for name in NAMES if not backends.create(name).quantises])
def test_a_backend_that_does_not_quantise_refuses_quantised_precisions(name: str) -> None:
    for precision in (Precision.INT8, Precision.FP8):
        cell = cell_of(name, "default", CUDA).model_copy(update={"precision": precision})
        assert precision in backends.create(name).supports(cell).reason


@pytest.mark.parametrize("device", [CPU, pytest.param(CUDA, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", NAMES)
def test_this_machine_has_it_or_a_reason_why_not(name: str, device: Device) -> None:
    answer = backends.create(name).available(device)
    assert is_an_answer(answer)
    if not answer:
        pytest.skip(f"no tests of {name} on {device}: {answer.reason}")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "null"])
def test_a_device_that_does_not_exist_is_refused_with_a_reason(name: str) -> None:
    absent = backends.create(name).available(Device("cuda:99"))
    assert not absent and is_an_answer(absent)


@pytest.fixture(scope="module")
def imported() -> dict[str, dict[str, list[str]]]:
    """Return what is imported when each backend is created and asked what it supports, in one fresh process."""
    script = f"""
import json, sys
sys.path.insert(0, {str(ROOT)!r})
from bakeoff import backends
from bakeoff.records.schema import Cell
found = {{}}
for name in sys.argv[1:]:
    before = set(sys.modules)
    backend = backends.create(name)
    for mode in backend.mode_names():
        for device in ("cpu", "cuda"):
            backend.supports(Cell(model="mlp", backend=name, mode=mode, device=device))
    found[name] = dict(modules=[*set(sys.modules) - before], libraries=[*backend.libraries])
print(json.dumps(found))
"""
    command = [sys.executable, "-c", script, *NAMES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_creating_a_backend_imports_no_library(imported: dict[str, dict[str, list[str]]], name: str) -> None:
    """The controller plans with the class alone. It touches neither torch nor the backend's libraries nor the GPU."""
    heavy = {"torch", "numpy", *(library.replace("-", "_") for library in imported[name]["libraries"])}
    assert not heavy & set(imported[name]["modules"])


def same(outputs: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...], why: str = "") -> None:
    """Check that number, order, shapes, types and device agree, and values to float32 accuracy."""
    assert len(outputs) == len(expected)
    for number, (ours, eagers) in enumerate(zip(outputs, expected, strict=True)):
        torch.testing.assert_close(ours, eagers, msg=lambda text, at=number: f"output {at}: {why}\n{text}")


def unseen(inputs: Inputs) -> Inputs:
    """Return inputs of the same shapes and types with other values in every tensor."""
    return inputs.map(lambda tensor: tensor * -0.5 + 0.25 if tensor.is_floating_point() else tensor.flip(0))


def is_an_answer(answer: Availability) -> bool:
    return isinstance(answer, Availability) and (bool(answer) or is_one_line(answer.reason))


def is_one_line(text: str) -> bool:
    return text == text.strip() and len(text.splitlines()) == 1
