"""`bakeoff explain` profiles cells, sums up by module, and measures what the profile suggests."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bakeoff.backends.profiling import CompilerWork, GraphBreak, Kind, ProfiledKernel, TracedSpan
from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.judgement import contests_of
from bakeoff.measuring.worker.counting import count, count_modules
from bakeoff.models.base import Inputs
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.records import report_file
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Ceilings, Cell, Interval, Record, Status, Work
from bakeoff.reports import markdown
from bakeoff.reports.command_answers import document
from bakeoff.why import controller
from bakeoff.why import explanation_text as shown
from bakeoff.why.explanation import ExplanationAnswer, ProfiledCell, explain, kernel_name, named_apart, tree_of
from bakeoff.why.explanation_text import explanation_to_page
from bakeoff.why.records import CellProfile, ThreadUse
from bakeoff.why.suggestions import brought, fewer_threads, request_to_try, suggestions, with_fewer_threads
from bakeoff.why.worker_profile import cpu_seconds_of_threads, first_paths_of, under_first_paths
from tests.conftest import CommandLine
from tests.reports import samples
from tests.support.golden import same_as_golden

CLASSES = {"": "Net", "layers": "Sequential", "layers.0": "Layer", "layers.0.norm": "LayerNorm", "layers.1": "Layer"}


def profile(label: str, *parts: ProfiledKernel, call_ms: float = 1.0, profiled_ms: float = 2.0) -> CellProfile:
    return CellProfile(
        label=label,
        cell_id=label,
        source="a profiler",
        call_ms=call_ms,
        median_ms=call_ms,
        profiled_ms=profiled_ms,
        calls=3,
        parts=list(parts),
        spans=[TracedSpan(name=part.name, modules=part.modules, begun_us=0, lasted_us=part.ms * 1e3) for part in parts],
        classes=CLASSES,
    )


def part(ms: float, *modules: str, name: str = "k", kind: Kind = Kind.COMPUTE) -> ProfiledKernel:
    return ProfiledKernel(name=name, modules=modules, kind=kind, ms=ms, runs=1)


EAGER = profile("eager", part(0.8, "layers.0.norm"), part(0.8, "layers.1"), part(0.4, ""), call_ms=3.0)
FUSED = profile("fused", part(1.2, "layers.0.norm", "layers.1"), part(0.4, "layers.0"), part(0.3, kind=Kind.FRAMEWORK))


def record(label: str = "onnx", ms: float = 1.0) -> Record:
    return samples.ok(samples.cell(label), samples.bursts(ms))


def beside(*profiles: CellProfile) -> list[ProfiledCell]:
    """Return the profiles as those of onnx, and of eager."""
    labels = ("onnx", "eager")
    return [
        ProfiledCell(each.but(label=label), record(label, each.median_ms))
        for each, label in zip(profiles, labels, strict=False)
    ]


def test_a_long_name_of_a_kernel_is_cut_in_the_table_and_whole_in_the_answer() -> None:
    name = f"sm80_xmma_gemm_{'f32f32_' * 20}cublas"
    explanation = explain(beside(profile("eager", part(1.0, "layers.1", name=name))), 3)
    assert explanation.rows[0].mostly == ((name, 1.0),)
    table = shown.times_table(explanation)
    cells = [column.text_of(row) for row in table.rows for column in table.columns]
    assert f"{name[: shown.MOST_OF_NAME - 1]}… 100 %" in cells


def test_the_command_says_why_its_exit_status_is_not_0(
    command_line: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = {True: beside(FUSED), False: beside(profile("loose", part(1.0, "layers.1")))}
    for is_whole, profiled in cells.items():
        monkeypatch.setattr(controller, "profile_run", lambda *_, profiled=profiled: profiled)
        status, _, err = command_line("explain", tmp_path)
        assert status == (0 if is_whole else 1)
        assert ("exit status 1: the rows do not sum to the call within 5 %" in err) is not is_whole


def test_json_and_trace_hold_every_kernel() -> None:
    explanation = explain(beside(FUSED, EAGER))
    answer = json.loads(document(ExplanationAnswer.of_profiles(explanation, [FUSED, EAGER]), 0))
    assert [len(each["parts"]) for each in answer["profiles"]] == [3, 3]
    events = json.loads(shown.to_chrome_trace([FUSED, EAGER]))["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    assert sum(event["ph"] == "X" for event in events) == 6


def test_the_tree_keeps_all_time_and_divides_no_kernel() -> None:
    root = tree_of([FUSED, EAGER])
    assert root.ms == (pytest.approx(1.0), pytest.approx(3.0))
    layers, *others = root.branches
    assert layers.name == "layers" and {branch.name for branch in others} == {"(framework)", "(not attributed)"}
    assert [branch.name for branch in layers.branches] == ["0.norm + 1", "0", "1"]
    assert layers.branches[0].ms[0] == pytest.approx(0.6)


def test_the_page_shows_both_cells_and_escapes_what_is_foreign() -> None:
    hostile = FUSED.but(work=CompilerWork(facts=["<script>alert(1)</script>"]))
    cells = beside(hostile, EAGER)
    page = explanation_to_page(explain(cells), cells)
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    assert (
        page.count('<button type="button" class="box') == 11
        and "0.norm + 1" in page
        and "onnx takes 1.000 ms a call" in page
    )


CEILINGS = Ceilings(flops_per_s=1e12, bytes_per_s=1e10)


def with_needs(known: CellProfile, label: str = "onnx", **flops_and_bytes: tuple[float, float]) -> ProfiledCell:
    """Return a cell whose modules need so much. An underscore stands for the model, and before a number for a dot."""
    needs = {
        path.strip("_").replace("_", "."): Work(flops=int(flops), bytes_moved=int(moved))
        for path, (flops, moved) in flops_and_bytes.items()
    }
    return ProfiledCell(known.but(needs=needs), record(label), CEILINGS)


def crowded(*paths: str, ms: float, classes: Sequence[str] = ()) -> CellProfile:
    """Return a profile of a model in which each of these modules takes so long."""
    made = profile("slow", *(part(ms, path) for path in paths), profiled_ms=ms * len(paths))
    return made.but(classes=dict.fromkeys(["", "layers", *classes, *paths], "Layer"))


def in_run(known: CellProfile, label: str = "onnx", ms: float = 1.0, **changes: Any) -> ProfiledCell:
    return ProfiledCell(known, record(label, ms).but(**changes))


def of_cell(**fields: Any) -> ProfiledCell:
    return ProfiledCell(EAGER, samples.ok(samples.cell("eager", **fields), samples.bursts(1.0)))


def hidden(ms: float, other_ms: float) -> list[ProfiledCell]:
    """Return a layer of many kernels beside one of a single kernel: what the profiler takes longer for is not known."""
    many = ProfiledKernel(name="k", modules=("layers.1",), ms=ms, runs=99)
    mine = profile("onnx", many, part(other_ms, "layers.0"), profiled_ms=ms + other_ms)
    needs: dict[str, tuple[float, float]] = {"layers_0": (1e8, 1e5), "layers_1": (1e8, 1e5)}
    return [with_needs(mine, **needs), ProfiledCell(EAGER, record("eager", 3.0))]


def scenes() -> dict[str, tuple[list[ProfiledCell], int | None]]:
    deep = [f"layers.{number}" for number in range(6)]
    wide = [f"layers.{number}" for number in range(30)]
    head = crowded(*deep, ms=1.0, classes=["head", "head.norm", "layers.0.norm"])
    usual, moving = (1e8, 1e5), (0, 6e6)
    threads = ThreadUse(allowed=1, busy=[0.9])
    here = FUSED.but(median_ms=1.5, threads=threads, versions={"torch": "2.13.0"})
    there = {"settings": {"threads": 2}, "versions": {"torch": "2.12.0", "numpy": "2.0"}}
    copies = [*FUSED.parts, part(0.2, name="Reorder", kind=Kind.COPY)]
    breaks = [GraphBreak(reason="print", place="mine.py, line 3, in forward")]
    work = CompilerWork(breaks=breaks, facts=["Two."], recompilations=["x.size(0) == 8"], fallbacks=["aten.foo"])
    busy = ThreadUse(allowed=2, busy=[0.9, 0.45, 0.1])
    did = FUSED.but(work=work, parts=copies, threads=busy)
    latency = record("eager", 0.1).latency
    assert latency
    unknown = latency.but(median_ci95_ms=Interval(low=1e-3, high=1e3))
    waited = samples.under(record("eager", 3.0).bursts, wait_share=1.4, cpu_share=1.2, others_cores=2.0)
    from_host = record().cell.but(inputs_from="host")
    return {
        "two cells": (beside(FUSED, EAGER), 3),
        "folded to one name": (beside(EAGER), 1),
        "folded to two names": (beside(FUSED, EAGER), 2),
        "opened where the time goes": (
            beside(head.but(parts=[*head.parts, part(0.1, "head.norm")], profiled_ms=6.1)), None
        ),
        "more modules than rows": (beside(crowded(*wide, ms=0.1)), None),
        "half of the call is in no row": (beside(profile("loose", part(1.0, "layers.1"))), None),
        "a quick profiler": (beside(profile("quick", part(0.7, "layers.1"), profiled_ms=0.7)), None),
        "ceilings": ([with_needs(EAGER, _=usual, layers=usual, layers_0=usual, layers_1=moving)], 2),
        "a ceiling of a module that shares a kernel": ([with_needs(FUSED, layers_0=usual)], 2),
        "faster than the ceiling": ([with_needs(EAGER, "eager", layers_1=(3e9, 1e5))], 2),
        "another cell that is faster than the ceiling": (
            [ProfiledCell(FUSED, record(), CEILINGS), with_needs(EAGER, "eager", layers_1=(3e9, 1e5))], 2
        ),
        "other threads and versions": ([in_run(here, **there)], None),
        "inputs from the host": ([in_run(FUSED, cell=from_host)], None),
        "near the run": ([in_run(FUSED), in_run(EAGER, "eager", 2.5)], 2),
        "far from the run": ([in_run(FUSED), in_run(EAGER, "eager", 0.1)], 2),
        "far from a run that knows little": ([in_run(FUSED), in_run(EAGER, "eager", 0.1, latency=unknown)], 2),
        "a busy run": ([in_run(FUSED), in_run(EAGER, "eager", 3.0, bursts=waited)], 2),
        "what a compiler did": (beside(did), None),
        "an incorrect cell": (
            [in_run(FUSED), in_run(EAGER, "eager", 3.0, status=Status.INCORRECT, reason="rmse 0.65")], None
        ),
        "two precisions": (named_apart([of_cell(), of_cell(precision=Precision.BF16)]), None),
        "two sizes": (named_apart([of_cell(dimensions={"batch": size}) for size in (1, 8)]), None),
        "rows that the profiler hides": (hidden(9.0, 1.0), 2),
        "a row that the profiler hides less": (hidden(9.0, 9.0 / 99), 2),
        "rows that a quick profiler does not hide": (hidden(0.9, 0.1), 2),
    }  # fmt: skip


def test_explanations_read_as_before() -> None:
    lines = []
    for name, (cells, depth) in scenes().items():
        text = markdown.render(shown.blocks_of(explain(cells, depth), cells))
        lines += [f"# {name}", *(line for line in text.splitlines() if line and not line.startswith("| :--"))]
    same_as_golden("explanations.txt", "\n".join(lines))


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("void onnxruntime::cuda::_UnaryElementWise<__half, onnxruntime::cuda::OP_Tanh<__half>, 256, 4>(__half const*)",
         "onnxruntime::cuda::_UnaryElementWise"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::Half, float, false>(int, float)",
         "at::native::vectorized_layer_norm_kernel"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int>(cublasGemvParamsEx<int>)",
         "internal::gemvx::kernel"),
        ("nvjet_sm90_hsh_96x64_64x10_1x2_h_bz_bias_TNN", "nvjet_sm90_hsh_96x64_64x10_1x2_h_bz_bias_TNN"),
        ("Memcpy DtoH (Device -> Pinned)", "Memcpy DtoH (Device -> Pinned)"),
        ("aten::add_", "aten::add_"),
    ],
)  # fmt: skip
def test_kernels_are_reported_without_what_a_compiler_adds(name: str, plain: str) -> None:
    assert kernel_name(name) == plain


MODEL = """
import torch
from torch import nn

torch.set_num_threads(1)


class Steps(nn.Module):
    def forward(self, x):
        for _ in range(100):
            x = torch.sin(x) + 0.001
        return x


def make():
    layers = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), Steps(), nn.Linear(32, 32))
    return nn.ModuleDict({"layers": layers})["layers"], torch.randn(8, 32)
"""


def stored_run(folder: Path, *backends: str, **of_cell: Any) -> Path:
    (folder / "steps.py").write_text(MODEL)
    cells = [samples.cell(backend, model="steps.py:make", **of_cell) for backend in backends]
    records = [samples.ok(cell, samples.bursts(1.0)) for cell in cells]
    report = samples.report(records)
    asked = {"models": ["steps.py:make"], "backends": list(backends), "devices": ["cpu"]}
    report_file.write_json(report.but(request=asked), folder / "run")
    return folder / "run"


@pytest.mark.usefixtures("forked_programs")
def test_a_cell_is_explained_beside_eager(command_line: CommandLine, tmp_path: Path) -> None:
    run = stored_run(tmp_path, "eager", "torchscript")
    _, out, _ = command_line("explain", run, "torchscript", "--json", "--trace", tmp_path / "trace.json")
    document = json.loads(out)
    assert [profile["label"] for profile in document["profiles"]] == ["torchscript", "eager"]
    rows = {tuple(row["modules"]): row for row in document["explanation"]["rows"]}
    assert all(rows[module,][time] > 0 for module in ("0", "2") for time in ("ms", "against_ms"))
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_a_cell_that_failed_is_refused_with_its_reason(command_line: CommandLine, tmp_path: Path) -> None:
    run = stored_run(tmp_path, "eager")
    report = report_file.read(run)
    failed = samples.failed(samples.cell("onnx", model="steps.py:make"), samples.Status.ERROR, "no such operator")
    report_file.write_json(report.but(records=[*report.records, failed]), run)
    status, _, err = command_line("explain", run, "onnx")
    assert status == 2 and "cannot be explained: it is error: no such operator" in err
    assert "resume" not in err
    ahead = samples.failed(samples.cell("onnx", model="steps.py:make"), samples.Status.NOT_REACHED, "interrupted")
    records = [*report.records, ahead]
    report_file.write_json(report.but(records=records, complete=False), run)
    _, _, err = command_line("explain", run, "onnx")
    assert f"the rest of the run: bakeoff resume {run}" in err


def test_cells_of_two_models_are_not_compared(command_line: CommandLine, tmp_path: Path) -> None:
    run = stored_run(tmp_path, "eager", "onnx")
    report = report_file.read(run)
    other = samples.ok(samples.cell("eager", model="other.py:make"), samples.bursts(1.0))
    report_file.write_json(report.but(records=[*report.records, other]), run)
    status, _, err = command_line("explain", run, "onnx", "--against", other.cell.id)
    assert status == 2 and "is of steps.py:make" in err and "is of other.py:make" in err
    status, _, err = command_line("explain", run, "onnx", "--against", "onnx")
    assert status == 2 and "is compared with itself" in err
    status, _, err = command_line("explain", run)
    assert status == 2 and "holds 2 contests" in err and other.cell.id in err


def profile_of_classes(classes: dict[str, str], *parts: tuple[str, Kind, float]) -> CellProfile:
    made = [ProfiledKernel(name=name, modules=("a",), kind=kind, ms=ms, runs=1) for name, kind, ms in parts]
    times = {"call_ms": 1.0, "median_ms": 1.0, "profiled_ms": 1.0}
    known = {"label": "x", "cell_id": "x", "source": "", **times, "calls": 1, "spans": []}
    return CellProfile.model_validate({**known, "parts": made, "classes": classes})


def test_suggestions_have_a_reason_in_the_profile_as_before() -> None:
    """Rounding as eager does is suggested for wrong outputs in half precision alone, and no graph without a GPU."""
    conv = profile_of_classes({"a": "Conv2d"}, ("mkldnn::_convolution", Kind.COMPUTE, 0.9), ("clone", Kind.COPY, 0.1))
    norms = profile_of_classes(
        {"a": "Conv2d"}, ("aten::conv2d", Kind.COMPUTE, 0.8), ("aten::batch_norm", Kind.COMPUTE, 0.2)
    )
    waiting = profile_of_classes({"a": "Linear"}, ("GPU idle", Kind.WAITING, 0.6), ("gemm", Kind.COMPUTE, 0.4))
    steps = profile_of_classes({}, ("aten::linear", Kind.COMPUTE, 0.8), ("aten::softmax", Kind.COMPUTE, 0.2))
    known = steps.but(unaligned=["a"], attention="eager")
    busy = profile_of_classes({}, ("Python and dispatch", Kind.FRAMEWORK, 0.5), ("relu", Kind.COMPUTE, 0.5))
    idle = profile_of_classes({}, ("fused", Kind.COMPUTE, 1.0))
    on_gpu = {name: samples.cell(name, device="cuda") for name in ("eager", "inductor")}
    half = samples.cell("inductor", precision="bf16")
    cases: dict[str, tuple[CellProfile, Cell, bool]] = {
        "convolutions": (conv, samples.cell("inductor"), False),
        **{f"convolutions of {name} on a GPU": (conv, cell, False) for name, cell in on_gpu.items()},
        "a GPU that waits": (waiting, on_gpu["inductor"], False),
        "wrong in bf16": (idle, half, True),
        "right in bf16": (idle, half, False),
        "wrong in fp32": (idle, samples.cell("inductor"), True),
        "wrong in onnx": (idle, samples.cell("onnx"), True),
        "batch norms": (norms, samples.cell("eager"), False),
        "aligned layers": (steps, samples.cell("eager"), False),
        "unaligned layers and steps of attention": (known, samples.cell("eager"), False),
        "others that do not take the time": (
            known.but(unaligned=["b"], attention="sdpa"),
            samples.cell("eager"),
            False,
        ),
        "Python": (busy, samples.cell("eager"), False),
    }
    lines = []
    for name, (profile, cell, is_wrong) in cases.items():
        found = suggestions(profile, cell, is_wrong) or {"nothing": "to try"}
        lines += [f"{name}, {configuration}: {why}" for configuration, why in found.items()]
    same_as_golden("suggestions.txt", "\n".join(lines))


def test_fewer_threads_are_tried_where_they_work_unevenly() -> None:
    uneven = profile_of_classes({}, ("relu", Kind.COMPUTE, 1.0))
    assert fewer_threads(uneven) is None  # nothing is known of threads
    for busy, threads in (([0.9, 0.2, 0.2, 0.2], 2), ([0.9, 0.85, 0.8, 0.8], None)):
        measured = uneven.but(threads=ThreadUse(allowed=4, busy=busy))
        assert fewer_threads(measured) == threads


def test_a_contest_with_fewer_threads_is_reported_as_one_of_its_own() -> None:
    def contest(level: float) -> ContestJudgement:
        return contests_of(samples.report([samples.lived(level, "eager")]))[0]

    text = markdown.render(with_fewer_threads(contest(2.0), contest(1.0), 2))
    assert "a contest of its own" in text and "| eager | 2.0" in text and "| 2.00 |" in text


def test_the_contest_holds_the_cell_beside_what_was_suggested() -> None:
    cell = samples.cell("eager", model="mlp", dimensions={"batch": 3, "features": 64, "hidden": 64})
    asked = request_to_try(Request(models=("conv",), devices=("cpu",)), cell, ["torchscript"], 2)
    (contest,) = plan(asked)
    assert [planned.cell.label for planned in contest.cells] == ["eager", "torchscript"]
    assert contest.cells[0].cell.dimensions == cell.dimensions and asked.processes == 2


def test_the_table_says_what_each_brought() -> None:
    records = [samples.lived(level, backend) for level, backend in ((2.0, "eager"), (1.0, "onnx"))]
    failed = samples.failed(samples.cell("openvino"), Status.ERROR, "no memory")
    (contest,) = contests_of(samples.report([*records, failed]))
    text = markdown.render([brought(contest, "eager", {"onnx": "it is fast", "openvino": "so is this"})])
    assert "| onnx | it is fast | 1.0" in text and "| faster |" in text
    assert "| openvino | so is this | - | - | no memory |" in text.replace("\\-", "-")


def test_a_shared_module_has_one_name() -> None:
    layer = nn.Linear(4, 4)
    first_paths = first_paths_of(nn.ModuleDict({"a": layer, "b": nn.Sequential(layer, nn.ReLU(), layer)}))
    assert first_paths == {"": "", "a": "a", "b": "b", "b.0": "a", "b.1": "b.1", "b.2": "a"}
    span = TracedSpan(name="gemm", modules=("b.0", "b.1", "b.2", "gone"), begun_us=0, lasted_us=1)
    assert [each.modules for each in under_first_paths([span], first_paths)] == [("a", "b.1", "gone")]


class Recursive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(8, 8)

    def forward(self, x: Tensor, *, depth: int = 2) -> Tensor:
        x = torch.tanh(self.step(x))
        return x if depth == 0 else self(x, depth=depth - 1)


def test_the_work_of_a_call_is_divided_among_its_modules() -> None:
    layers, x = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 2))), torch.randn(3, 8)
    work = count_modules(layers, Inputs((x,)), Precision.FP32)
    whole = count(layers, Inputs((x,)), Precision.FP32)
    assert work[""] == whole
    assert {path: each.flops for path, each in work.items()} == {"0": 192, "1": 0, "2.0": 48, "2": 48, "": 240}
    assert work["1"].bytes_moved == 2 * 3 * 4 * 4  # reads and writes three rows of four numbers
    assert work["2"].bytes_moved == 4 * (8 + 2 + 12 + 6)  # its weights, what it is given, what it returns


def test_a_module_that_calls_itself_is_counted_once() -> None:
    work = count_modules(Recursive(), Inputs((torch.randn(2, 8),)), Precision.FP32)
    assert work[""].flops == work["step"].flops == 3 * 2 * 2 * 8 * 8


def test_seconds_of_threads_grow_with_work() -> None:
    before = sum(cpu_seconds_of_threads().values())
    while sum(cpu_seconds_of_threads().values()) < before + 0.05:
        torch.randn(200, 200) @ torch.randn(200, 200)
