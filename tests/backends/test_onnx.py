"""ONNX Runtime: sessions, placement and bindings; and onnxruntime-genai, which keeps caches of its own."""

from __future__ import annotations

import json
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
from bakeoff.backends.exporting import exported_before
from bakeoff.backends.onnx import Sessions, _depends_on_values, assignment, time_share_of
from bakeoff.backends.runtime.onnx import BoundCalls
from bakeoff.models.generation import Generating
from bakeoff.records.device import Device
from bakeoff.records.errors import BakeoffError, Unsupported
from bakeoff.records.precision import Precision
from bakeoff.records.schema import DECODE, PREFILL, Cell, Extent, Placement
from bakeoff.truth.distribution import CALLS, difference
from bakeoff.truth.generating import compare, generate
from tests.backends.building import Built, built
from tests.support.cells import cell_of

onnxruntime = pytest.importorskip("onnxruntime")
ROOT = Path(__file__).parents[2]
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


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
    assert set(placement.engines) == {CPU} and placement.engines[CPU] > 3
    assert one.compiled.settings()["provider"] == CPU


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
        (session_on(**{CUDA: ["Gemm", "Relu"]}), Placement(extent=Extent.FULL, engines={CUDA: 2})),
        (
            session_on(**{CUDA: ["Gemm"], CPU: ["Gather", "Shape", "Gather"]}),
            Placement(
                extent=Extent.PARTIAL,
                engines={CUDA: 1, CPU: 3},
                fallbacks=[f"Gather on {CPU} (2)", f"Shape on {CPU} (1)"],
            ),
        ),
        (
            session_on(**{CPU: ["Gemm", "Gemm"]}),
            Placement(extent=Extent.FALLBACK, engines={CPU: 2}, fallbacks=[f"Gemm on {CPU} (2)"]),
        ),
    ],
    ids=["full", "partial", "fallback"],
)
def test_nodes_elsewhere_are_named_and_counted(session: Any, placement: Placement) -> None:
    assert assignment(session, CUDA) == placement


def test_an_onnxruntime_that_does_not_tell_is_not_guessed_for() -> None:
    assert assignment(SimpleNamespace(), CPU) is None


@pytest.mark.skipif(CUDA in onnxruntime.get_available_providers(), reason="this build of ONNX Runtime has CUDA's")
def test_a_build_without_the_provider_says_what_to_install() -> None:
    absent = backends.create("onnx").available(Device("cuda"))
    assert not absent
    assert CUDA in absent.reason and "pip install onnxruntime-gpu" in absent.reason


def test_a_provider_that_does_not_come_up_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime goes on with other providers, and would be measured under the wrong name."""
    monkeypatch.setattr(onnxruntime, "InferenceSession", ElsewhereSession)
    cell = Cell(model="mlp", dimensions={"batch": 1, "features": 4, "hidden": 4}, backend="onnx")
    with pytest.raises(BakeoffError, match=f"could not start {CPU}"), built(cell, tmp_path):
        pass


@pytest.mark.parametrize(("mode", "operators"), [("default", 0), ("opset-23", 2)])
def test_from_opset_23_attention_is_one_operator(mode: str, operators: int, tmp_path: Path) -> None:
    import onnx

    sizes = {"batch": 1, "seq": 8, "dim": 16, "heads": 2, "ffn": 16}
    with built(cell_of("transformer", "onnx", sizes, mode=mode), tmp_path) as one:
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]))
    graph = onnx.load(str(tmp_path / "model.onnx")).graph
    assert sum(node.op_type == "Attention" for node in graph.node) == operators


@pytest.mark.parametrize(
    ("model", "sizes", "keeps"),
    [
        ("mlp", {"batch": 1, "features": 4, "hidden": 4}, True),
        ("conv", {"batch": 1, "size": 8, "channels": 3, "width": 4, "classes": 2}, False),
    ],
)
def test_only_convolutions_are_tried_out_again(model: str, sizes: dict[str, int], keeps: bool, tmp_path: Path) -> None:
    cell = Cell(model=model, dimensions=sizes, backend="onnx")
    with built(cell, tmp_path):
        on_gpu = cell.model_copy(update={"device": Device("cuda")})
        assert backends.create("onnx").keeps_choices(on_gpu, tmp_path) == keeps
        assert not backends.create("onnx").keeps_choices(on_gpu, tmp_path / "nothing built")


def test_providers_nobody_ran_and_what_rounds_its_inputs_carry_a_caveat() -> None:
    onnx = backends.create("onnx")
    without = {mode.name for mode in onnx.modes if not mode.caveat}
    assert without == {"default", "cpu", "cuda", "cuda-graph", "opset-23", "openvino-ep"}


def test_shares_of_the_time_need_the_kernels_own_times() -> None:
    on_cpu = {"cat": "Node", "name": "atan_kernel_time", "dur": 30, "args": {"provider": CPU}}
    launch = {"cat": "Node", "name": "gemm_kernel_time", "dur": 500, "args": {"provider": CUDA}}
    kernel = {"cat": "Kernel", "name": "sgemm", "dur": 90}
    assert time_share_of([on_cpu, launch, kernel]) == {CUDA: 0.75, CPU: 0.25}
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
