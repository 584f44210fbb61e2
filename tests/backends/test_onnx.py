"""ONNX Runtime: sessions, placement and bindings, its plug-ins, none of which falls back; and onnxruntime-genai."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, ClassVar

import numpy
import pytest
import torch

from bakeoff import backends, models
from bakeoff.backends import onnx_plugins as plugins
from bakeoff.backends.base import BuildContext
from bakeoff.backends.exporting import export_onnx, exported_before
from bakeoff.backends.onnx import PROVIDERS, Sessions, _depends_on_values, assignment, time_share_of
from bakeoff.backends.onnx import _plugin as plugin_of
from bakeoff.backends.onnx_plugins import OPENVINO, RTX, WEBGPU, Plugin
from bakeoff.backends.ranges import OpenAxis
from bakeoff.backends.runtime.onnx import BoundCalls
from bakeoff.measuring.worker.cell_model import load
from bakeoff.models.base import LoadedModel
from bakeoff.models.generation import Generating
from bakeoff.records.device import CPU, Device
from bakeoff.records.errors import BakeoffError, Unavailable, Unsupported
from bakeoff.records.precision import Precision
from bakeoff.records.schema import DECODE, PREFILL, Cell, Extent, Placement
from bakeoff.truth.distribution import CALLS, difference
from bakeoff.truth.generating import compare, generate
from tests.backends.building import Built, RecordingPhases, built, loaded
from tests.support.cells import cell_of
from tests.support.modules import Calling

onnxruntime = pytest.importorskip("onnxruntime")
ROOT = Path(__file__).parents[2]
CPU_PROVIDER, CUDA_PROVIDER = "CPUExecutionProvider", "CUDAExecutionProvider"


class WatchedSession(onnxruntime.InferenceSession):  # type: ignore[misc]
    """A session that remembers how it was made and called."""

    made: ClassVar[list[WatchedSession]] = []

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.given = options
        self.addresses: list[list[int]] = []  # where each call wrote its outputs
        self.made.append(self)

    def run_with_iobinding(self, binding: Any, *options: Any) -> None:
        self.addresses.append([value.data_ptr() for value in binding.get_outputs() if value.has_value()])
        super().run_with_iobinding(binding, *options)


class ElsewhereSession(onnxruntime.InferenceSession):  # type: ignore[misc]
    """A session that went on with another provider."""

    def get_providers(self) -> list[str]:
        return ["SomeOtherProvider"]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """The model with the most unusual arguments, all of them keywords."""
    cell = Cell(model=f"{ROOT / 'tests/backends/keywords.py'}:factory", backend="onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnxruntime, "InferenceSession", WatchedSession)
        with built(cell, tmp_path_factory.mktemp("onnx")) as compiled:
            yield compiled


@pytest.fixture
def session(one: Built) -> WatchedSession:
    """The session that `one` calls."""
    return WatchedSession.made[0]


def test_it_runs_wholly_on_the_cpu_provider(one: Built) -> None:
    placement = one.compiled.placement()
    assert placement is not None and placement.extent is Extent.FULL
    assert set(placement.engines) == {CPU_PROVIDER} and placement.engines[CPU_PROVIDER] > 3
    assert one.compiled.settings()["provider"] == CPU_PROVIDER


def test_the_sessions_options_are_the_cells(one: Built, session: WatchedSession) -> None:
    options = session.get_session_options()
    assert options.intra_op_num_threads == one.context.threads == torch.get_num_threads()
    assert options.inter_op_num_threads == 1
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    # otherwise its Python side tries again with another provider, when a session is made and in every call
    assert session.given["enable_fallback"] == 0


def test_inputs_are_named_after_the_parameters(one: Built, session: WatchedSession) -> None:
    names = {value.name for value in session.get_inputs()}
    assert names == {"query", "keys", "mask"}  # the temperature is a constant of the graph
    (artefact,) = one.context.workspace.glob("*.onnx")
    assert artefact.name == "model.onnx"


def names_called(function: Callable[[], object]) -> set[str]:
    """Return the names of all functions that are called by `function`, also of those written in C."""
    names: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            names.add(frame.f_code.co_name if event == "call" else argument.__name__)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return names


NUMPYS = {"numpy", "__array__", "from_numpy", "asarray", "array", "ascontiguousarray"}
"""Names of functions that make an array of numpy's."""


def test_a_call_uses_no_numpy_and_writes_to_the_same_buffers(one: Built, session: WatchedSession) -> None:
    expected = one.eager(one.sets[1])
    session.addresses.clear()

    def call_twice() -> None:
        for inputs in one.sets[:2]:
            one.compiled.bind(inputs)
            one.compiled.run()
        one.compiled.outputs()

    called = names_called(call_twice)
    assert "run_with_iobinding" in called and not called & NUMPYS
    assert names_called(lambda: expected[0].numpy()) & NUMPYS
    first, second = session.addresses
    assert first == second
    torch.testing.assert_close(one.compiled.outputs(), expected)


def test_inputs_that_are_not_contiguous_are_read_rightly(one: Built) -> None:
    strided = one.sets[1].map(lambda tensor: tensor.transpose(0, -1).contiguous().transpose(0, -1))
    assert not all(tensor.is_contiguous() for tensor in strided.tensors())
    torch.testing.assert_close(one.call(strided), one.eager(strided))


def test_inputs_bound_and_dropped_are_never_taken_for_others(one: Built) -> None:
    """Bindings are kept by the id of the inputs, which Python gives to another object once they are gone."""
    for shift in range(20):
        one.compiled.bind(one.sets[0].map(lambda tensor, by=shift: tensor.roll(by, 0)))
        expected = one.eager(one.sets[0].map(lambda tensor, by=shift: tensor.roll(by, 0)))
        torch.testing.assert_close(one.call_again(), expected)


def session_on(**operators: list[str]) -> Any:
    """Return a session that reports the operators of each provider."""
    parts = [
        SimpleNamespace(ep_name=provider, get_nodes=lambda names=names: [SimpleNamespace(op_type=one) for one in names])
        for provider, names in operators.items()
    ]
    return SimpleNamespace(get_provider_graph_assignment_info=lambda: parts)


@pytest.mark.parametrize(
    ("session", "placement"),
    [
        (session_on(**{CUDA_PROVIDER: ["Gemm", "Relu"]}), Placement(extent=Extent.FULL, engines={CUDA_PROVIDER: 2})),
        (
            session_on(**{CUDA_PROVIDER: ["Gemm"], CPU_PROVIDER: ["Gather", "Shape", "Gather"]}),
            Placement(
                extent=Extent.PARTIAL,
                engines={CUDA_PROVIDER: 1, CPU_PROVIDER: 3},
                fallbacks=[f"Gather on {CPU_PROVIDER} (2)", f"Shape on {CPU_PROVIDER} (1)"],
            ),
        ),
        (
            session_on(**{CPU_PROVIDER: ["Gemm", "Gemm"]}),
            Placement(extent=Extent.FALLBACK, engines={CPU_PROVIDER: 2}, fallbacks=[f"Gemm on {CPU_PROVIDER} (2)"]),
        ),
    ],
    ids=["full", "partial", "fallback"],
)
def test_nodes_elsewhere_are_named_and_counted(session: Any, placement: Placement) -> None:
    assert assignment(session, CUDA_PROVIDER) == placement


def test_an_onnxruntime_that_does_not_say_is_not_guessed_for() -> None:
    assert assignment(SimpleNamespace(), CPU_PROVIDER) is None


@pytest.mark.skipif(CUDA_PROVIDER in onnxruntime.get_available_providers(), reason="this build has CUDA's")
def test_a_build_without_the_provider_says_what_to_install() -> None:
    absent = backends.create("onnx").available(Device("cuda"))
    assert not absent
    assert CUDA_PROVIDER in absent.reason and "pip install onnxruntime-gpu" in absent.reason


def test_a_provider_that_does_not_come_up_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime goes on with other providers, and would be measured under the wrong name."""
    monkeypatch.setattr(onnxruntime, "InferenceSession", ElsewhereSession)
    cell, model = Cell(model="own", backend="onnx"), loaded(torch.nn.Tanh(), 1, 4)
    with pytest.raises(BakeoffError, match=f"could not start {CPU_PROVIDER}"), built(cell, tmp_path, model):
        pass


@pytest.mark.parametrize(("mode", "operators"), [("default", 0), ("opset-23", 1)])
def test_from_opset_23_attention_is_one_operator(mode: str, operators: int, tmp_path: Path) -> None:
    import onnx

    attends = Calling(lambda _, x: torch.nn.functional.scaled_dot_product_attention(x, x, x))
    with built(Cell(model="own", backend="onnx", mode=mode), tmp_path, loaded(attends, 1, 2, 8, 16)) as one:
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]))
    graph = onnx.load(str(tmp_path / "model.onnx")).graph
    assert sum(node.op_type == "Attention" for node in graph.node) == operators


@pytest.mark.parametrize(
    ("model", "keeps"),
    [(loaded(torch.nn.Linear(4, 4), 1, 4), True), (loaded(torch.nn.Conv1d(2, 2, 3), 1, 2, 8), False)],
)
def test_only_convolutions_are_tried_out_again(model: LoadedModel, keeps: bool, tmp_path: Path) -> None:
    cell = Cell(model="own", backend="onnx")
    with built(cell, tmp_path, model) as one:
        on_gpu = cell.model_copy(update={"device": Device("cuda")})
        assert one.backend.keeps_choices(on_gpu, tmp_path) == keeps
        assert not one.backend.keeps_choices(on_gpu, tmp_path / "nothing built")


def test_providers_nobody_ran_and_what_rounds_its_inputs_carry_a_caveat() -> None:
    onnx = backends.create("onnx")
    without = {mode.name for mode in onnx.modes if not mode.caveat}
    assert without == {"default", "cpu", "cuda", "cuda-graph", "opset-23", "openvino-ep"}


def test_shares_of_the_time_need_the_kernels_own_times() -> None:
    on_cpu = {"cat": "Node", "name": "atan_kernel_time", "dur": 30, "args": {"provider": CPU_PROVIDER}}
    launch = {"cat": "Node", "name": "gemm_kernel_time", "dur": 500, "args": {"provider": CUDA_PROVIDER}}
    kernel = {"cat": "Kernel", "name": "sgemm", "dur": 90}
    assert time_share_of([on_cpu, launch, kernel]) == {CUDA_PROVIDER: 0.75, CPU_PROVIDER: 0.25}
    assert time_share_of([on_cpu, launch]) == {}


def test_a_session_that_must_not_fall_back_says_so(one: Built) -> None:
    """The CPU provider has nothing to forbid, but ONNX Runtime checks the option itself."""
    exported = exported_before(one.context.workspace)
    assert exported is not None
    refused = Sessions(exported, one.context, "cpu").accepted_without_cpu()
    assert refused.startswith("refused: ") and "assigned to the default CPU EP" in refused


SIZES_BY_VALUES = """
import sys
from pathlib import Path
import torch
from bakeoff.records.schema import Cell
from tests.backends.building import built
with built(Cell(model="tests/cases/sizes_by_values.py:factory", backend="onnx"), Path(sys.argv[1])) as one:
    bound = one.sets[0]
    before = one.call(bound)
    bound.args[0][0] = 1.0
    assert one.eager(bound)[1].shape != before[1].shape
    torch.testing.assert_close(one.call_again(), one.eager(bound))
    torch.testing.assert_close(one.call(one.sets[2]), one.eager(one.sets[2]))
"""


@pytest.mark.slow
def test_an_output_without_a_size_gets_memory_in_each_call(tmp_path: Path) -> None:
    """It has a process of its own, as each build has in a run: torch exports no such model after another one."""
    done = subprocess.run(
        [sys.executable, "-c", SIZES_BY_VALUES, str(tmp_path)], cwd=ROOT, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr


def test_values_decide_the_sizes_that_have_no_symbol_of_an_axis() -> None:
    by_values, of_an_axis = SimpleNamespace(shape=["u0", 2]), SimpleNamespace(shape=["s0", 2])
    assert _depends_on_values(by_values, is_open=True) and _depends_on_values(by_values, is_open=False)
    assert not _depends_on_values(of_an_axis, is_open=True)


RESIZING = """
import torch
from torch import nn

def factory():
    return nn.Upsample(scale_factor=2.3, mode="nearest"), torch.randn(1, 3, 10, 10)
"""


def test_an_output_has_room_where_the_session_infers_a_smaller_shape(tmp_path: Path) -> None:
    (tmp_path / "resizing.py").write_text(RESIZING)
    with built(Cell(model=f"{tmp_path / 'resizing.py'}:factory", backend="onnx"), tmp_path) as one:
        again = exported_before(one.context.workspace)
        assert again is not None and again.output_shapes == ((1, 3, 23, 23),)
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]))
        in_folder = BoundCalls(onnxruntime.InferenceSession(again.path), lambda _: [numpy.empty((1, 3, 23, 23), "f")])
        for inputs in one.sets[:2]:
            in_folder.bind([tensor.numpy() for tensor in inputs.tensors()])
            for _ in range(2):
                in_folder.run()
                torch.testing.assert_close(torch.from_numpy(in_folder.results()[0]), one.eager(inputs)[0])


DROPPING = """
import torch
from torch import nn

class Dropping(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5, training=True)

def factory():
    return Dropping(), torch.ones(4, 64)
"""


def test_dropout_is_distributed_as_eagers_if_each_call_has_a_seed(tmp_path: Path) -> None:
    (tmp_path / "dropping.py").write_text(DROPPING)
    with built(Cell(model=f"{tmp_path / 'dropping.py'}:factory", backend="onnx"), tmp_path) as one:

        def drawn(seeds: Iterable[int], times: float = 1.0) -> dict[str, torch.Tensor]:
            rows = []
            for seed in seeds:
                one.compiled.seed(seed)
                rows.append(times * one.call(one.sets[0])[0].flatten().double())
            return {"output": torch.stack(rows)}

        torch.manual_seed(0)
        eagers = {"output": torch.stack([one.eager(one.sets[0])[0].flatten().double() for _ in range(CALLS)])}
        seeds = random.Random(0)
        independent = [seeds.getrandbits(31) for _ in range(CALLS)]
        assert difference(drawn(independent), eagers, Precision.FP32) == ""
        assert "has another" in difference(drawn(independent, times=1.1), eagers, Precision.FP32)
        assert "has another" in difference(drawn([seeds.getrandbits(31)] * CALLS), eagers, Precision.FP32)


NAME = "onnxruntime-genai"
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 32,
    "vocab_size": 100,
}
IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}


def cell_in_folder(folder: Path, task: str, kind: str = "llama", architecture: str = "LlamaForCausalLM") -> Cell:
    config = {"model_type": kind, "architectures": [architecture], **SIZES, **IDS}
    (folder / "config.json").write_text(json.dumps(config))
    family = Generating(models.find(f"hf:{folder}"))
    dimensions = family.resolve({"prompt": "6", "new_tokens": "5"})
    return Cell(model=family.name, dimensions=dimensions, task=task, backend=NAME)


@pytest.fixture(params=[("qwen3", "Qwen3ForCausalLM", DECODE), ("llama", "LlamaForCausalLM", PREFILL)])
def step(request: pytest.FixtureRequest, tmp_path: Path, vision: None) -> Iterator[Built]:
    pytest.importorskip("onnxruntime_genai")
    kind, architecture, task = request.param
    workspace = tmp_path / "artifact"
    workspace.mkdir()
    with torch.inference_mode(), built(cell_in_folder(tmp_path, task, kind, architecture), workspace) as found:
        yield found


def test_it_computes_each_set_in_any_order_and_its_caches_are_those_of_the_module(step: Built) -> None:
    for number in (0, 3, 1, 1, 2, 0):
        torch.testing.assert_close(step.call(step.sets[number]), step.eager(step.sets[number]), atol=1e-5, rtol=1e-4)


def test_outputs_are_those_of_the_last_call(step: Built) -> None:
    wanted = step.eager(step.sets[0])
    step.call(step.sets[0])
    step.compiled.bind(step.sets[1])
    torch.testing.assert_close(step.compiled.outputs(), wanted, atol=1e-5, rtol=1e-4)


def test_a_generation_goes_on_from_its_own_tokens_and_the_sets_are_right_afterwards(step: Built) -> None:
    ours, eager = generate(step.call, step.sets, step.cell), generate(step.eager, step.sets, step.cell)
    assert ours is not None and eager is not None
    found = compare(ours, eager)
    assert found.agreed == found.tokens
    test_it_computes_each_set_in_any_order_and_its_caches_are_those_of_the_module(step)


def test_what_it_leaves_is_its_model_and_a_later_process_starts_from_it(step: Built) -> None:
    workspace = step.context.workspace
    assert [path.name for path in workspace.iterdir()] == ["model"]
    written = (workspace / "model" / "model.onnx").stat().st_mtime_ns
    with step.backend.build(step.module, step.sets[0], step.context) as again:
        again.bind(step.sets[0])
        again.run()
        torch.testing.assert_close(again.outputs(), step.eager(step.sets[0]), atol=1e-5, rtol=1e-4)
    assert (workspace / "model" / "model.onnx").stat().st_mtime_ns == written


@pytest.mark.usefixtures("vision")
def test_an_architecture_that_it_does_not_build_is_unsupported(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    cell = cell_in_folder(tmp_path, DECODE, "gpt2", "GPT2LMHeadModel")
    with pytest.raises(Unsupported, match="onnxruntime-genai builds no GPT2LMHeadModel"), built(cell, tmp_path):
        pass


Install = Callable[[str, object], None]
CUDA = Device("cuda")
PLUGIN_SIZES = {"batch": 2, "features": 8, "hidden": 8}
PROVIDER, ON_CPU = "FakeExecutionProvider", "CPUExecutionProvider"


def offer(address: str = "0000:01:00.0", name: str = PROVIDER, kind: str = "GPU") -> Any:
    hardware = SimpleNamespace(metadata={"pci_bus_id": address}, type=SimpleNamespace(name=kind))
    return SimpleNamespace(ep_name=name, device=hardware)


class Machine:
    """A machine with one GPU of compute capability 8.6, fake plug-ins, and what they offer."""

    def __init__(self, patch: pytest.MonkeyPatch, install: Install, system: Path) -> None:
        self.registered: list[tuple[str, str]] = []
        self.offered: list[Any] = [offer()]
        self.capability = (8, 6)
        self.cards = [SimpleNamespace(pci_domain_id=0, pci_bus_id=1, pci_device_id=0)]
        self.system = system
        self.refusal = ""
        for plugin in (RTX, OPENVINO, WEBGPU):
            library = SimpleNamespace(get_library_path=lambda: "plugin.so", get_ep_name=lambda: PROVIDER, __spec__=True)
            install(plugin.module, library)
        system.mkdir()
        patch.setattr(plugins, "SYSTEM", system)
        patch.setattr(onnxruntime, "register_execution_provider_library", self.register)
        patch.setattr(onnxruntime, "get_ep_devices", lambda: [offer(name=ON_CPU), *self.offered])
        patch.setattr(torch.cuda, "device_count", lambda: len(self.cards))
        patch.setattr(torch.cuda, "get_device_properties", lambda index: self.cards[index])
        patch.setattr(torch.cuda, "get_device_capability", lambda index: self.capability)
        patch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=1234))

    def register(self, name: str, library: str) -> None:
        if self.refusal:
            raise RuntimeError(self.refusal)
        self.registered.append((name, library))

    def show(self, where: str, vendor: str = "0x10de", pci_class: str = "0x030000") -> None:
        folder = self.system / where
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{pci_class}\n")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, install: Install, tmp_path: Path) -> Iterator[Machine]:
    plugins._register.cache_clear()
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "")  # a session sets it, and it is undone after the test
    yield Machine(monkeypatch, install, tmp_path / "sys")
    plugins._register.cache_clear()


def reason(plugin: Plugin = RTX, device: Device = CUDA) -> str:
    with pytest.raises(Unavailable) as caught:
        plugin.find(device)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize("plugin", plugins.KNOWN)
def test_where_it_is_not_installed_the_reason_says_how_to_get_it(
    machine: Machine, plugin: Plugin, install: Install
) -> None:
    install(plugin.module, None)
    assert reason(plugin).endswith(f"pip install {plugin.package}") and not machine.registered


def test_a_plugin_that_does_not_load_says_why(machine: Machine) -> None:
    machine.refusal = "libcuda.so.1: cannot open shared object file"
    assert reason() == f"{RTX.package} does not load: {machine.refusal}"


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0), (12, 1)])
def test_a_gpu_that_rtx_does_not_serve_is_named_with_its_capability(machine: Machine, capability: Any) -> None:
    machine.offered, machine.capability = [], capability
    is_served = capability in ((8, 6), (8, 9), (12, 0), (12, 1))
    assert reason().endswith(f"cuda has {capability[0]}.{capability[1]}") is not is_served


DRIVER = "a driver that is too old"
CARD, BUS = "class/drm/card1/device", "bus/pci/devices/0000:01:00.0"


@pytest.mark.parametrize(
    ("plugin", "device", "shown", "said"),
    [
        (RTX, CUDA, (), plugins.NO_GPU),
        (RTX, CUDA, (CARD, "0x1a03"), plugins.NO_GPU),  # a server's own display
        (RTX, CUDA, (BUS, "0x10de", "0x040300"), plugins.NO_GPU),  # the sound of a card
        (RTX, CUDA, (CARD,), DRIVER),
        (RTX, CUDA, (BUS,), DRIVER),
        (WEBGPU, CPU, (), plugins.NO_GPU),
        (WEBGPU, CPU, (BUS, "0x8086", "0x020000"), plugins.NO_GPU),
        (WEBGPU, CPU, (CARD, "0x8086"), DRIVER),
    ],
)
def test_whether_onnxruntime_sees_a_gpu_is_part_of_the_reason(
    machine: Machine, plugin: Plugin, device: Device, shown: tuple[str, ...], said: str
) -> None:
    machine.offered = []
    if shown:
        machine.show(*shown)
    assert said in reason(plugin, device)


def test_the_plugin_is_loaded_once_for_all_sessions(machine: Machine) -> None:
    assert RTX.find(CUDA) is RTX.find(CUDA) is machine.offered[0]
    assert machine.registered == [(PROVIDER, "plugin.so")]


def test_of_several_gpus_it_takes_the_one_with_the_same_address(machine: Machine) -> None:
    machine.cards = [SimpleNamespace(pci_domain_id=0, pci_bus_id=bus, pci_device_id=0) for bus in (0x65, 0xCA)]
    machine.offered = [offer("0000:CA:00.0"), offer("0000:17:00.0")]
    assert RTX.find(Device("cuda:1")) is machine.offered[0]
    assert f"{RTX.package} offers nothing for cuda:0" in reason(RTX, Device("cuda:0"))


def test_for_inputs_in_host_memory_it_takes_the_cpu_and_otherwise_what_there_is(machine: Machine) -> None:
    machine.offered = [offer(), offer(kind="CPU")]
    assert OPENVINO.find(CPU) is machine.offered[1]
    assert RTX.find(CUDA) is machine.offered[0]
    machine.offered = [offer(name=f"{PROVIDER}.AUTO", kind="CPU"), offer()]
    assert WEBGPU.find(CPU) is machine.offered[1]


def test_what_a_build_of_onnxruntime_has_itself_stands_in_for_a_missing_plugin(
    machine: Machine, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    built_in = [PROVIDERS[OPENVINO.mode], ON_CPU]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: built_in)
    assert plugin_of(OPENVINO.mode) is OPENVINO and plugin_of("cpu") is None
    install(OPENVINO.module, None)
    assert plugin_of(OPENVINO.mode) is None
    built_in.remove(PROVIDERS[OPENVINO.mode])
    assert plugin_of(OPENVINO.mode) is OPENVINO  # whose reason says what to install


def test_an_installed_plugin_without_a_row_gets_a_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "onnxruntime_ep_some_thing.py").touch()
    (tmp_path / f"{WEBGPU.module}.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    (other,) = (plugin for plugin in plugins._others() if "some" in plugin.mode)
    assert (other.mode, other.package, other.device) == ("ep-some-thing", "onnxruntime-ep-some-thing", "")
    assert other.caveat


class Options(onnxruntime.SessionOptions):  # type: ignore[misc,name-defined]
    """Session options that take a fake device, and so leave every node to the CPU."""

    given: Any = None

    def add_provider_for_devices(self, devices: list[Any], options: dict[str, str]) -> None:
        type(self).given = (devices, options)


def context_in(folder: Path, precision: str = "fp32", axes: tuple[OpenAxis, ...] = ()) -> BuildContext:
    cell = cell_of("mlp", "onnx", PLUGIN_SIZES, mode=RTX.mode, device=CUDA, precision=precision)
    return BuildContext(cell, RecordingPhases(), folder, threads=1, open_axes=axes)


@pytest.mark.parametrize(("precision", "override"), [("fp32", "0"), ("tf32", "1")])
def test_a_session_runs_on_the_plugins_device_and_on_the_current_stream_and_nowhere_else(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, override: str
) -> None:
    """The session is real. Only the plug-in is missing from it."""
    monkeypatch.setattr(onnxruntime, "SessionOptions", Options)
    model = load(cell_of("mlp", "onnx", PLUGIN_SIZES))
    exported = export_onnx(model.module, model.inputs[0], tmp_path)
    axes = (OpenAxis(tensor=0, axis=0, dimensions=("batch",), low=1, high=4),)
    with pytest.raises(Exception, match="fallback to CPU EP has been explicitly disabled"):
        Sessions(exported, context_in(tmp_path, precision, axes), RTX.mode, model.inputs[0]).open()
    name = exported.input_names[0]
    assert Options.given == (
        machine.offered,
        {
            "has_user_compute_stream": "1",
            "user_compute_stream": "1234",
            "nv_runtime_cache_path": str(tmp_path),
            "nv_profile_min_shapes": f"{name}:1x8",
            "nv_profile_opt_shapes": f"{name}:2x8",
            "nv_profile_max_shapes": f"{name}:4x8",
        },
    )
    assert os.environ["NVIDIA_TF32_OVERRIDE"] == override


def test_a_build_where_it_is_missing_ends_as_unavailable_before_anything_is_exported(
    machine: Machine, tmp_path: Path
) -> None:
    machine.offered, machine.capability = [], (9, 0)
    model, context = load(cell_of("mlp", "onnx", PLUGIN_SIZES)), context_in(tmp_path)
    with pytest.raises(Unavailable, match=r"cuda has 9\.0"):
        backends.create("onnx").build(model.module, model.inputs[0], context)
    assert isinstance(context.phase, RecordingPhases) and not context.phase.names


def test_onnxruntime_has_what_plugins_are_loaded_with() -> None:
    """The CPU is a device that ONNX Runtime itself offers, in the form of a plug-in's."""
    (cpu,) = (offer for offer in onnxruntime.get_ep_devices() if offer.ep_name == ON_CPU)
    assert cpu.device.type.name == "CPU" and dict(cpu.device.metadata) is not None
    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices([cpu], {})
    with pytest.raises(Exception, match="no-such-plugin"):
        onnxruntime.register_execution_provider_library("none", "/no-such-plugin.so")


with_openvino = pytest.mark.skipif(not OPENVINO.is_installed, reason=f"pip install {OPENVINO.package}")


@with_openvino
@pytest.mark.parametrize("model", ["mlp", "conv", "transformer"])
def test_openvinos_plugin_runs_whole_models_in_float32(model: str, tmp_path: Path) -> None:
    """Without its hint for the precision, errors are above 1e-3 on a CPU that multiplies bf16."""
    with built(cell_of(model, "onnx", mode=OPENVINO.mode), tmp_path) as one:
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]), rtol=1e-4, atol=1e-5)
        placement = one.compiled.placement()
        assert placement and placement.extent is Extent.FULL
        assert list(placement.engines) == [OPENVINO.provider()]


DETERMINANTS = """
import torch

class Determinants(torch.nn.Module):
    def forward(self, x):
        return torch.linalg.det(torch.tanh(x))

def factory():
    return Determinants(), torch.randn(2, 8, 8)
"""


@with_openvino
def test_what_openvinos_plugin_leaves_to_the_cpu_is_named(tmp_path: Path) -> None:
    (tmp_path / "determinants.py").write_text(DETERMINANTS)
    cell = Cell(model=f"{tmp_path / 'determinants.py'}:factory", backend="onnx", mode=OPENVINO.mode)
    with built(cell, tmp_path) as one:
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]))
        placement = one.compiled.placement()
        assert placement and (placement.extent, placement.time_share) == (Extent.PARTIAL, {})
        assert placement.fallbacks == [f"Det on {ON_CPU} (1)"]
        with pytest.raises(Unsupported, match=OPENVINO.provider()):
            one.compiled.profiler(one.module)
