"""Profilers name the modules of the user's model that each kernel works for."""

import copy
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import ANY

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
from torch import Tensor, nn

from bakeoff.backends import inductor_profiling, onnx_profiling, onnx_quantising, openvino_profiling, weight_only
from bakeoff.backends.calling import FlatModule
from bakeoff.backends.eager import Callables
from bakeoff.backends.exporting import export_onnx
from bakeoff.backends.onnx_profiling import QUANTISING, Node, kernels_in
from bakeoff.backends.openvino_profiling import Converted, RuntimeNode
from bakeoff.backends.profiling import (
    WARMING_CALLS,
    GraphNode,
    Kernel,
    Kind,
    Owner,
    ProfiledKernel,
    TracedSpan,
    aligned,
    module_path,
    operator_name,
    owners_in_order,
    parts_of,
    with_gaps,
    within_flat,
)
from bakeoff.backends.torch_profiling import (
    CALL,
    REGION,
    SCOPE,
    Event,
    TorchProfiler,
    Trace,
    graph_kernels,
    nested,
    own_times,
    owner_between,
    shares_in,
)
from bakeoff.models.base import Inputs, LoadedModel
from bakeoff.records.precision import Precision
from tests.backends.building import built, loaded
from tests.support.cells import labelled

WIDTH = 32


class ManySteps(nn.Module):
    """Takes 400 small steps, of which each is an operator of its own, and a sine that no compiler folds."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(200):
            x = torch.sin(x) + 0.001
        return x


class Planted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), ManySteps(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) * 2.0


class Breaking(nn.Module):
    """Breaks the graph between its two modules, so that equal layers share two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.act = nn.Sequential(nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        torch._dynamo.graph_break()
        return self.act(x)


class WithBreaks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Breaking() for _ in range(2))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[1](self.layers[0](torch.sigmoid(self.stem(x))))
        return torch.tanh(self.head(x))


def planted(kind: type[nn.Module] = Planted) -> LoadedModel:
    torch.manual_seed(0)
    return loaded(kind(), 8, WIDTH, sets=2)


def profiled(backend: str, workspace: Path, kind: type[nn.Module] = Planted) -> list[ProfiledKernel]:
    """Return the parts of profiled calls of a model, on one thread."""
    torch.set_num_threads(1)
    with built(labelled(backend), workspace, planted(kind), threads=1, for_profile=True) as made:
        made.call_again()
        profiler = made.compiled.profiler(made.module)
        assert profiler is not None
        with profiler:
            for _ in range(WARMING_CALLS + 15):
                profiler.run()
            calls = profiler.calls()
            fastest = min(calls[WARMING_CALLS:] or calls, key=lambda spans: sum(span.lasted_us for span in spans))
            return profiler.parts([fastest])


@pytest.fixture
def one_thread() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def times_by_modules(parts: list[ProfiledKernel]) -> Counter[tuple[str, ...]]:
    times: Counter[tuple[str, ...]] = Counter()
    for part in parts:
        times[part.modules] += part.ms
    return times


@pytest.mark.parametrize("backend", ["eager", "torchscript", pytest.param("onnx", marks=pytest.mark.slow)])
def test_the_planted_module_is_named(backend: str, tmp_path: Path, one_thread: None) -> None:
    parts = profiled(backend, tmp_path)
    times = times_by_modules(parts)
    known = {name for name, _ in Planted().named_modules()}
    assert {name for modules in times for name in modules} <= known
    owned = {modules: ms for modules, ms in times.items() if modules}
    slow = sum(ms for modules, ms in owned.items() if "layers.2" in modules)
    assert slow / sum(times.values()) >= 0.8
    assert any("layers.0" in modules for modules in owned) and any("layers.3" in modules for modules in owned)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["openvino", "inductor", "aotinductor"])
def test_what_a_compiler_fuses_names_all_its_modules(backend: str, tmp_path: Path, one_thread: None) -> None:
    parts = profiled(backend, tmp_path)
    assert any(len(part.modules) > 1 for part in parts)
    assert any("layers.2" in part.modules for part in parts)
    assert {"layers.3"} <= {name for part in parts for name in part.modules}


@pytest.mark.slow
def test_modules_behind_a_graph_break_have_the_paths_that_they_have_in_eager(tmp_path: Path, one_thread: None) -> None:
    def operators_of(backend: str) -> dict[str, set[str]]:
        parts = [part for part in profiled(backend, tmp_path / backend, WithBreaks) if part.kind is Kind.COMPUTE]
        return {
            part.name: {name for each in parts if each.name == part.name for name in each.modules} for part in parts
        }

    eager, compiled = operators_of("eager"), operators_of("inductor")
    assert compiled["addmm"] == eager["aten::linear"] == {"stem", "layers.0.linear", "layers.1.linear", "head"}
    fused = {name for kernel, names in compiled.items() if "relu" in kernel for name in names}
    assert fused == eager["aten::relu"] == {"layers.0.act.0", "layers.1.act.0"}


def test_eager_rows_sum_to_the_call_and_name_the_operators(tmp_path: Path, one_thread: None) -> None:
    parts = profiled("eager", tmp_path)
    slow = {part.name: part for part in parts if part.modules == ("layers.2",)}
    assert slow["aten::sin"].runs == 200 and slow["aten::add"].runs == 200
    assert slow["Python and dispatch"].kind is Kind.FRAMEWORK
    assert all(part.ms >= 0 for part in parts)


def breaking(x: Tensor) -> Tensor:
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


def test_eager_on_a_quantised_copy_has_the_modules_of_the_copy(one_thread: None) -> None:
    module, inputs = planted().module, planted().inputs[0]
    quantised = FlatModule(copy.deepcopy(module), inputs)
    called = Callables(quantised, quantised)
    called.bind(inputs)
    with called.profiler(module) as profiler:
        profiler.run()
        (spans,) = profiler.calls()
    assert {"", "layers", "layers.0", "layers.2", "layers.3"} <= {path for span in spans for path in span.modules}


def test_operators_of_an_exported_graph_have_its_modules_and_a_quantisers_none() -> None:
    exported = torch.export.export(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.ones(2, 4),)).module()
    assert isinstance(exported, torch.fx.GraphModule)
    relu = next(node for node in exported.graph.nodes if "relu" in str(node.target))
    with exported.graph.inserting_before(relu):
        operator = torch.ops.quantized_decomposed.quantize_per_tensor.default
        quantised = exported.graph.call_function(operator, (relu.args[0], 0.1, 0, 0, 255, torch.uint8))
    quantised.meta = dict(relu.meta)
    assert [(kernel.name, kernel.modules) for kernel in graph_kernels(exported.graph)][-3:] == [
        ("aten::linear", ("0",)),
        ("quantized_decomposed::quantize_per_tensor", ()),
        ("aten::relu", ("1",)),
    ]


def test_a_graph_break_is_named_by_file_and_line() -> None:
    torch._dynamo.reset()
    torch.compile(breaking, backend="eager")(torch.ones(2))
    line = breaking.__code__.co_firstlineno + 2
    places = [each.place for each in inductor_profiling.graph_breaks()]
    assert f"test_profiling.py, line {line}, in breaking" in places
    torch._dynamo.reset()


def breaking_twice(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x + 1
    if x.mean() > 0:
        x = x + 2
    return x


def test_of_two_graph_breaks_in_a_row_both_are_named() -> None:
    torch._dynamo.reset()
    torch.compile(breaking_twice, backend="eager")(torch.ones(2))
    line = breaking_twice.__code__.co_firstlineno
    places = {each.place for each in inductor_profiling.graph_breaks()}
    assert {f"test_profiling.py, line {line + n}, in breaking_twice" for n in (1, 3)} <= places
    torch._dynamo.reset()


def test_a_graph_break_without_a_reason_is_reported_in_words() -> None:
    reasons = ["step_unsupported", "No resume\n  Explanation: it is a loop.\n  Hint: none."]
    sentences = [inductor_profiling.first_sentence(reason) for reason in reasons]
    assert sentences == ["Dynamo does not trace what this line calls, and gives no reason", "No resume: it is a loop."]


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return x + self.seen


def test_a_guard_that_fails_is_reported_once() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.guard_failures.clear()
    counting = torch.compile(Counting().forward, backend="eager")
    for _ in range(4):
        counting(torch.ones(2))
    (guard,) = inductor_profiling.distinct_guards(inductor_profiling.failed_guards())
    assert guard.startswith("self.seen == 0") and "HINT" not in guard
    assert ("test_profiling.py" in guard) is (torch.__version__ >= (2, 9))
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("traced", "path"),
    [
        ("L['self'].layers.0.norm", "layers.0.norm"),
        ("L['self']._modules['layers']._modules['0']", "layers.0"),
        ("L['self'].layers[3]", "layers.3"),
        ("L['self']", ""),
        ("L['me'].stem", "stem"),
        ("module.layers.0", "module.layers.0"),
    ],
)
def test_paths_of_tracers_become_those_of_the_model(traced: str, path: str) -> None:
    assert module_path(traced) == path


def test_the_wrapper_of_flat_arguments_is_no_module_of_the_user() -> None:
    assert [within_flat(path) for path in ("module", "module.layers.0", "modules.0")] == ["", "layers.0", "modules.0"]


@pytest.mark.parametrize(
    "name", ["aten::addmm", "extern_kernels.addmm", "torch.ops.aten.addmm.default", "aoti_torch_cpu_addmm_out"]
)
def test_names_of_one_operator_agree(name: str) -> None:
    assert operator_name(name) == "addmm"
    assert operator_name("graph_0_cpp_fused_add_1") == operator_name("cpp_fused_add_1") == "cpp_fused_add_1"


def test_kernels_are_found_in_order_among_what_else_ran() -> None:
    assert aligned(["addmm", "gelu", "addmm"], ["empty", "addmm", "empty", "gelu", "addmm"]) == [None, 0, None, 1, 2]
    assert aligned([], ["addmm"]) == [None]


def test_what_torchscript_fuses_on_a_gpu_has_the_modules_between_its_neighbours() -> None:
    operators = (("aten::linear", "up"), ("aten::relu", "act"), ("aten::sin", "wave"), ("aten::linear", "down"))
    kernels = [Kernel(name, (path,)) for name, path in (*operators, ("aten::mul", ""), ("aten::add", "last"))]
    ran = ["linear", "fused_relu_sin", "linear", "resolve_conj", "fused_mul_add"]
    assert owners_in_order(kernels, ran) == [("up",), ("act", "wave"), ("down",), (), ("", "last")]


def test_own_times_leave_out_the_children() -> None:
    events = [("", True, 0), ("a", True, 1000), ("a.b", True, 3000), ("a.b", False, 7000), ("a", False, 8000)]
    spans = own_times([*events, ("", False, 10000)])
    times = Counter[str]()
    for span in spans:
        times[span.name] += span.lasted_us
    assert times == {"": 3.0, "a": 3.0, "a.b": 4.0}


def test_equal_graphs_are_told_apart_by_their_order() -> None:
    def graph(begun_ns: int) -> Event:
        addmm = Event("aten::addmm", begun_ns + 1, begun_ns + 5, 0, [])
        return Event("## Call CompiledFxGraph f", begun_ns, begun_ns + 8, 0, [addmm])

    call = Event(CALL, 0, 40, 0, [graph(0), graph(10), graph(20)])
    kernels = [[Kernel("extern_kernels.addmm", (name,))] for name in ("first", "second")]
    profiler = TorchProfiler(lambda: None, False, kernels)
    assert [run.operators[0][1] for run in profiler._runs_of(call)] == [("first",), ("second",), ("first",)]


def test_a_shared_graph_names_the_modules_of_the_module_that_calls_it() -> None:
    def graph(compile_id: str, begun_ns: int, operator: str = "aten::addmm") -> Event:
        run = Event("## Call CompiledFxGraph f", begun_ns, begun_ns + 8, 0, [])
        run.inside.append(Event(operator, begun_ns + 1, begun_ns + 5, 0, []))
        return Event(f"{REGION}{compile_id}", begun_ns, begun_ns + 8, 0, [run])

    layers = [Event(f"{SCOPE}layers.{number}", 10 * number, 10 * number + 9, 0, []) for number in range(2)]
    for number, layer in enumerate(layers):
        layer.inside.append(graph("1/0", 10 * number))
    eager = Event(f"{SCOPE}head", 30, 39, 0, [Event("aten::linear", 30, 35, 0, [])])
    root = Event(SCOPE, 0, 40, 0, [*layers, graph("0/0", 20), eager])
    kernels = [[Kernel("extern_kernels.addmm", (path,))] for path in ("stem", "linear")]
    profiler = TorchProfiler(lambda: None, False, kernels, WithBreaks(), compile_ids=["0/0", "1/0"])
    runs = profiler._runs_of(Event(CALL, 0, 40, 0, [root]))
    owners = [("layers.0.linear",), ("layers.1.linear",), ("stem",), ("head",)]
    assert [run.operators[0][1] for run in runs] == owners


def test_what_dynamo_left_to_eager_has_the_modules_that_call_it() -> None:
    layer = Event(f"{SCOPE}layers.0", 10, 19, 0, [Event("aten::linear", 11, 15, 0, [])])
    root = Event(SCOPE, 0, 40, 0, [layer, Event("aten::addmm", 30, 35, 0, [])])
    profiler = TorchProfiler(lambda: None, False, [[Kernel("extern_kernels.addmm", ("stem",))]], WithBreaks())
    (run,) = profiler._runs_of(Event(CALL, 0, 40, 0, [root]))
    assert [modules for _, modules in run.operators] == [("layers.0",), ("",)]
    assert profiler.work().facts == ["No compiled graph ran in the profiled calls: torch.compile leaves them to eager."]


def test_events_nest_by_their_times() -> None:
    outer, inner, after = (
        Event(name, *ends, 0, []) for name, ends in zip("oia", [(0, 9), (1, 4), (9, 12)], strict=True)
    )
    assert [event.name for event in nested([after, inner, outer])] == ["o", "a"]
    assert outer.inside == [inner]


def test_operators_of_a_scripted_model_are_reported_within_its_call() -> None:
    linear = Event("aten::linear", 2, 8, 0, [])
    call = Event(CALL, 0, 10, 0, [Event("forward", 1, 9, 0, [linear])])
    (shares,) = shares_in(Trace([call], [])).values()
    assert {name: share for (name, _), (share, _) in shares.items()} == {
        "aten::linear": pytest.approx(0.6),
        "Python and dispatch": pytest.approx(0.4),
    }


def test_gaps_are_the_frameworks() -> None:
    spans = [TracedSpan(name="k", modules=("a",), begun_us=2, lasted_us=3)]
    whole = with_gaps(spans, 10, "host")
    assert [(span.kind, span.begun_us, span.lasted_us) for span in whole] == [
        (Kind.FRAMEWORK, 0, 2),
        (Kind.COMPUTE, 2, 3),
        (Kind.FRAMEWORK, 5, 5),
    ]
    assert sum(part.ms for part in parts_of([whole, whole])) == pytest.approx(0.01)


def test_a_gap_between_operators_of_one_module_is_the_modules() -> None:
    places = [(0, ("a",)), (3, ("a",)), (6, ("b",)), (9, ("b", "c")), (12, ("b", "c"))]
    spans = [TracedSpan(name="k", modules=modules, begun_us=begun_us, lasted_us=2) for begun_us, modules in places]
    gaps = [span for span in with_gaps(spans, 15, "host", owners=owner_between) if span.kind is Kind.FRAMEWORK]
    assert [(gap.begun_us, gap.modules) for gap in gaps] == [(2, ("a",)), (5, ()), (8, ()), (11, ()), (14, ())]
    idle = [span for span in with_gaps(spans, 15, "GPU idle", Kind.WAITING) if span.kind is Kind.WAITING]
    assert len(idle) == 5 and not any(span.modules for span in idle)


def test_fused_nodes_stand_for_the_nodes_between_their_values() -> None:
    exported = [
        Node("norm", "LayerNormalization", ("x",), ("n",), ("norm",)),
        Node("matmul", "MatMul", ("n", "w"), ("m",), ("linear",)),
        Node("bias", "Add", ("m", "b"), ("l",), ("linear",)),
        Node("relu", "Relu", ("l",), ("r",), ("act",)),
        Node("split", "Split", ("r",), ("s",)),
    ]
    optimised = [
        Node("norm", "LayerNormalization", ("x",), ("n",)),
        Node("reorder", "Reshape", ("n",), ("flat",)),
        Node("fused", "FusedGemm", ("flat", "w", "b"), ("flat_out",)),
        Node("back", "Reshape", ("flat_out",), ("r",)),
        Node("split", "Split", ("r",), ("s",)),
    ]
    owners = onnx_profiling.owners_of(exported, optimised)
    assert owners["norm"] == Owner(("norm",))
    assert owners["reorder"] == Owner((), Kind.COPY)
    assert owners["fused"] == Owner(("linear", "act"))
    assert owners["split"] == Owner(())  # the exporter does not say


@pytest.mark.slow
def test_products_in_few_bits_keep_the_modules_that_they_had_in_float32(tmp_path: Path) -> None:
    layers = nn.Sequential(*(nn.Linear(32, 32, bias=number != 1) for number in range(3))).eval()
    inputs = Inputs((torch.randn(4, 32),))

    def modules_of(path: Path) -> list[tuple[str, ...]]:
        return [node.modules for node in onnx_profiling.nodes_at(path) if node.operator not in QUANTISING]

    rounded = export_onnx(layers, inputs, tmp_path)
    weight_only.onnx_weights(rounded, Precision("w8a32"), {})
    assert modules_of(rounded.path) == [("0",), ("0",), ("1",), ("2",), ("2",)]  # the second one has no bias
    quantised = onnx_quantising.static_onnx(export_onnx(layers, inputs, tmp_path), [inputs], tmp_path)
    assert modules_of(quantised.path) == [("0",), ("1",), ("2",)]
    converted = openvino_profiling.converted_from_onnx(quantised.path)
    assert converted.graph["node_linear_1"].modules == ("1",)
    assert converted.graph["linear_QuantizeLinear"] == GraphNode((), ANY, moves=True)


def test_what_a_quantiser_inserts_is_a_cast_and_no_module_of_its_neighbours() -> None:
    quantising = [Node("q", "QuantizeLinear", ("r", "s"), ("rq",)), Node("d", "DequantizeLinear", ("rq", "s"), ("rd",))]
    exported = [
        Node("first", "Gemm", ("x", "w"), ("r",), ("layers.0",)),
        *quantising,
        Node("second", "Gemm", ("rd", "v"), ("y",), ("layers.1",)),
        Node("third", "MatMulNBits", ("y", "u"), ("z",)),
    ]
    optimised = [
        Node("first", "Gemm", ("x", "w"), ("r",)),
        quantising[0],
        Node("second", "QGemm", ("rq", "s", "v"), ("y",)),
        Node("third", "MatMulNBits", ("y", "u"), ("z",)),
    ]
    owners = onnx_profiling.owners_of(exported, optimised)
    assert owners["q"] == Owner((), Kind.COPY)
    assert [owners[name] for name in ("first", "second")] == [Owner(("layers.0",)), Owner(("layers.1",))]
    assert owners["third"] == Owner(())  # nothing says its module


def test_blocked_convolutions_are_found_by_their_names() -> None:
    exported = [
        Node("conv1", "Conv", ("x", "w1"), ("a",), ("conv1",)),
        Node("conv2", "Conv", ("a", "w2"), ("b",), ("conv2",)),
        Node("add", "Add", ("a", "b"), ("c",), ("block",)),
        Node("mean", "ReduceMean", ("c",), ("d",), ("pool",)),
    ]
    optimised = [
        Node("a_nchwc", "Conv", ("x", "r1"), ("n1",)),
        Node("b_nchwc", "Conv", ("n1", "r2", "n1"), ("n2",)),
        Node("out", "ReorderOutput", ("n2",), ("c",)),
        Node("mean", "ReduceMean", ("c",), ("d",)),
    ]
    owners = onnx_profiling.owners_of(exported, optimised)
    modules = {name: owner.modules for name, owner in owners.items()}
    assert modules == {"a_nchwc": ("conv1",), "b_nchwc": ("conv2", "block"), "out": (), "mean": ("pool",)}


def test_a_norm_that_the_exporter_merges_into_a_convolution_names_both(tmp_path: Path) -> None:
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    exported = export_onnx(layers.eval(), Inputs((torch.randn(1, 3, 8, 8),)), tmp_path)
    (convolution, _) = onnx_profiling.nodes_at(exported.path)
    assert onnx_profiling.modules_by_node([convolution]) == {convolution.name: ("0", "1")}


def test_nodes_that_an_engine_computes_once_own_nothing() -> None:
    mask = Node("mask", "Expand", ("weights",), ("m",), ("layers.0",))
    add = Node("add", "Add", ("x", "m"), ("y",), ("layers.7",))
    assert onnx_profiling.without_constants([mask, add], ["x"]) == [add]


def test_calls_of_onnx_runtime_hold_the_executors_own_time() -> None:
    node = {"cat": "Node", "name": "norm_kernel_time", "ts": 12, "dur": 5, "args": {"op_name": "Norm"}}
    second = {"cat": "Node", "name": "act_kernel_time", "ts": 20, "dur": 1, "args": {"op_name": "Relu"}}
    run = {"cat": "Session", "name": "model_run", "ts": 10, "dur": 12}
    (spans,) = onnx_profiling.calls_in([node, second, run], {"norm": Owner(("a",)), "act": Owner(("b",))})
    assert [(span.name, span.modules, span.lasted_us) for span in spans] == [
        ("ONNX Runtime's executor", (), 2),
        ("Norm", ("a",), 5),
        ("ONNX Runtime's executor", ("b",), 3),
        ("Relu", ("b",), 1),
        ("ONNX Runtime's executor", (), 1),
    ]


def test_weights_that_onnx_runtime_dequantises_in_each_call_are_casts() -> None:
    event = {"name": "w_DequantizeLinear_kernel_time", "ts": 1, "dur": 1, "args": {"op_name": "DequantizeLinear"}}
    assert onnx_profiling.span_of(event, 0, {}).kind is Kind.COPY


def test_nodes_of_openvino_have_the_modules_that_they_were_fused_from() -> None:
    nodes = [
        RuntimeNode("linear/aten.linear.default/Add", "FullyConnected", ("linear/x/Add", "gelu/x/Gelu"), ()),
        RuntimeNode("Multiply_12", "Subgraph", ("Multiply_12",), ("linear/aten.linear.default/Add",)),
        RuntimeNode("a_f32_bf16_b", "Reorder", (), ()),
        RuntimeNode("sin/x/Sin", "Subgraph", ("sin/x/Sin",), ("Multiply_12",)),
        RuntimeNode("Power_7", "Subgraph", ("Power_7",), ("sin/x/Sin",)),
    ]
    graph = {
        "linear": GraphNode(("up",)),
        "gelu": GraphNode(("act",), ("linear",)),
        "mul": GraphNode(("scale",), ("gelu",)),
        "sin": GraphNode(("wave",), ("mul",)),
    }
    converted = Converted(graph)
    assert list(openvino_profiling.owners_of(nodes, converted).values()) == [
        Owner(("up", "act")),
        Owner(("scale",)),  # renamed: what is before its reader and has no node
        Owner((), Kind.COPY),
        Owner(("scale", "wave")),
        Owner(()),  # not known
    ]


def test_a_product_with_rounded_weights_is_not_the_node_that_openvino_says_it_was_fused_from() -> None:
    names = [f"{name}/aten.linear.default/Add" for name in ("linear", "linear_1", "linear_2")]
    nodes = [
        RuntimeNode(name, "FullyConnected", fused, ())
        for name, fused in zip(names, ((), (names[0], "gelu/x/Gelu"), (names[1],)), strict=True)
    ]
    modules = {"linear": "0", "linear_1": "1", "gelu": "act", "linear_2": "2"}
    converted = Converted({name: GraphNode((path,)) for name, path in modules.items()})
    owners = openvino_profiling.owners_of(nodes, converted)
    assert [owner.modules for owner in owners.values()] == [("0",), ("1", "act"), ("2",)]


def test_a_node_of_openvino_has_the_modules_of_what_it_took_in_without_a_word() -> None:
    nodes = [
        RuntimeNode("relu/x/Relu", "Eltwise", (), ()),
        RuntimeNode("mul/x/Multiply", "FullyConnected", ("mul/x/Multiply",), ("relu/x/Relu",)),
    ]
    graph = {
        "relu": GraphNode(("act",)),
        "linear": GraphNode(("down",), ("relu",)),
        "view": GraphNode(("other",), ("linear",), moves=True),
        "mul": GraphNode(("",), ("view",)),
    }
    owners = openvino_profiling.owners_of(nodes, Converted(graph))
    assert owners[nodes[1]].modules == ("down", "")


def test_what_openvino_cuts_off_is_divided_among_its_nodes_up_to_a_microsecond() -> None:
    owners = [Owner(("n",)), Owner((), Kind.COPY)]
    spans = openvino_profiling.lost_in_rounding(1.0, 7.0, owners)
    assert [(span.modules, span.begun_us, span.lasted_us) for span in spans] == [(("n",), 7.0, 0.5), ((), 7.5, 0.5)]
    assert [span.lasted_us for span in openvino_profiling.lost_in_rounding(90.0, 0.0, owners)] == [1.0, 1.0]
    assert openvino_profiling.lost_in_rounding(-1.0, 0.0, owners) == []


def test_means_of_openvino_leave_out_the_first_calls() -> None:
    spans = openvino_profiling.spans_between({"a": ("MVN", 100.0)}, 1, {"a": ("MVN", 30.0)}, 8, {"a": Owner(("n",))})
    assert [(span.name, span.modules, span.lasted_us) for span in spans] == [("MVN", ("n",), 20.0)]


def test_views_give_a_kernel_no_modules_beside_those_that_compute() -> None:
    def node(operator: str, path: str) -> SimpleNamespace:
        return SimpleNamespace(target=SimpleNamespace(__name__=operator), meta={"nn_module_stack": {"k": (path, None)}})

    add, view = node("add.Tensor", "L['self'].norm"), node("view.default", "L['self'].linear")
    assert inductor_profiling.modules_of_origins([add, view]) == ("norm",)
    assert inductor_profiling.modules_of_origins([view]) == ("linear",)


@pytest.mark.parametrize("shift_us", [0, 7, 40])
def test_kernels_of_onnx_runtime_have_the_nodes_within_which_they_were_launched(shift_us: int) -> None:
    """In each of two runs, `first` launches one kernel, `reshape` none, and `last` two. The call has 50 µs to spare."""
    runs = [{"name": "model_run", "ts": begun, "dur": 60} for begun in (1000, 1100)]
    nodes = [
        {"cat": "Node", "name": f"{name}_kernel_time", "ts": run["ts"] + begun, "dur": 10}
        for run in runs
        for name, begun in (("first", 5), ("reshape", 25), ("last", 45))
    ]
    launched_us = [run["ts"] + after + shift_us - 1000 for run in runs for after in (8, 47, 51)]
    inside = [
        Event("cudaLaunchKernel", us * 1000, us * 1000 + 900, number, []) for number, us in enumerate(launched_us)
    ]
    call = Event(CALL, 0, 210_000, 0, inside)
    kernels = [Event("abc"[number % 3], 500_000 + number, 500_001 + number, number, []) for number in range(6)]
    owners = {"first": Owner(("layers.0",)), "last": Owner(("layers.1",))}
    trace = Trace([call], [(kernel, 0) for kernel in kernels])
    assert kernels_in(trace, [*nodes, *runs], owners) == [
        Kernel("a", ("layers.0",)), Kernel("b", ("layers.1",)), Kernel("c", ("layers.1",)),
    ]  # fmt: skip
    assert kernels_in(trace, runs, owners) == []


@pytest.mark.gpu
@pytest.mark.parametrize(
    "backend",
    ["eager", "eager/cuda-graph", "inductor", "inductor/cuda-graph", "torchscript", "onnx", "onnx/cuda-graph"],
)
def test_kernels_on_a_gpu_have_the_modules_that_launched_them(backend: str, tmp_path: Path) -> None:
    with built(labelled(backend, device="cuda"), tmp_path, planted(), for_profile=True) as made:
        made.call_again()
        profiler = made.compiled.profiler(made.module)
        assert profiler is not None
        with profiler:
            for _ in range(5):
                profiler.run()
            parts = profiler.parts(profiler.calls()[2:])
    kernels = [part for part in parts if part.kind is Kind.COMPUTE]
    owned = sum(part.ms for part in kernels if part.modules)
    assert owned >= 0.9 * sum(part.ms for part in kernels)
    assert any("layers.2" in part.modules for part in kernels)
