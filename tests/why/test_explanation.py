"""Profiles are summed up by module, down to a depth, and put side by side."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from bakeoff.backends.profiling import CompilerWork, GraphBreak, Kind, ProfiledKernel, TracedSpan
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Ceilings, Record, Status, Work
from bakeoff.reports import markdown
from bakeoff.reports.command_answers import document
from bakeoff.why import explanation_text as shown
from bakeoff.why.explanation import (
    Explanation,
    ExplanationAnswer,
    ProfiledCell,
    differences,
    explain,
    kernel_name,
    named_apart,
    tree_of,
)
from bakeoff.why.explanation_text import explanation_to_page
from bakeoff.why.records import CellProfile, ThreadUse
from tests.reports import samples


def to_markdown(explanation: Explanation, cells: Sequence[ProfiledCell]) -> str:
    return markdown.render(shown.blocks_of(explanation, cells))


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
        work=CompilerWork(breaks=[GraphBreak(reason="print", place="mine.py, line 3, in forward")], facts=["Two."]),
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
        ProfiledCell(each.model_copy(update={"label": label}), record(label, each.median_ms))
        for each, label in zip(profiles, labels, strict=False)
    ]


def rows(explanation: Explanation) -> dict[str, tuple[float | None, float | None]]:
    return {shown.name_of(row): (row.ms, row.against_ms) for row in explanation.rows}


def test_rows_and_residual_sum_to_the_call() -> None:
    explanation = explain(beside(FUSED, EAGER), 3)
    assert sum(row.ms or 0 for row in explanation.rows) + explanation.residual_ms == pytest.approx(1.0)
    assert sum(row.against_ms or 0 for row in explanation.rows) == pytest.approx(3.0)
    assert explanation.residual_ms == pytest.approx(0.05)
    assert explanation.profiling_cost == 2.0


def test_a_kernel_for_several_modules_is_one_row_that_names_them() -> None:
    found = rows(explain(beside(FUSED, EAGER), 3))
    assert found["layers.0.norm + layers.1"] == (pytest.approx(0.6), None)
    assert found["(framework)"] == (pytest.approx(0.15), None)
    assert found[shown.THE_MODEL] == (None, pytest.approx(0.6))


def test_modules_fold() -> None:
    assert list(rows(explain(beside(EAGER), 1))) == [shown.THE_MODEL, "layers"]
    assert list(rows(explain(beside(FUSED), 2))) == ["layers.0", "layers.0 + layers.1", "(framework)"]


def test_without_a_depth_modules_open_where_the_time_goes() -> None:
    paths = ["head", "head.norm", "layers", *(f"layers.{number}" for number in range(6)), "layers.0.norm"]
    parts = [part(1.0, f"layers.{number}") for number in range(6)] + [part(0.1, "head.norm")]
    slow = profile("slow", *parts, profiled_ms=6.1).model_copy(update={"classes": dict.fromkeys(["", *paths], "Layer")})
    found = explain(beside(slow))
    assert found.depth is None
    assert list(rows(found)) == ["head", *(f"layers.{number}" for number in range(6))]
    crowded = [f"layers.{number}" for number in range(30)]
    many = slow.model_copy(update={"classes": dict.fromkeys(["", "layers", *crowded], "Layer")})
    many = many.model_copy(update={"parts": [part(0.1, path) for path in crowded]})
    assert list(rows(explain(beside(many)))) == ["layers"]


def test_a_profiled_call_that_takes_less_time_is_no_finding() -> None:
    assert shown.cost_of_profiling(14.28) == "Profiling makes a call 14.28x as long"
    assert shown.cost_of_profiling(0.7) == "Profiled calls take no longer than others"


def test_a_residual_beyond_a_twentieth_is_told() -> None:
    loose = profile("loose", part(1.0, "layers.1"))
    assert explain(beside(FUSED)).is_whole and not explain(beside(loose)).is_whole
    text = to_markdown(explain(beside(loose)), beside(loose))
    assert "rows sum to 50 % less than the call (not within 5 %)" in text


def test_the_table_compares_and_tells_what_compilers_did() -> None:
    text = to_markdown(explain(beside(FUSED, EAGER), 2), beside(FUSED, EAGER))
    assert "**onnx takes 1.000 ms a call, and eager 3.000 ms: 3.00x.**" in text
    assert "| layers.0 | 0.2000 | 20 | 1.200 | 6.00 | k 100 % |" in text
    assert "- Graph break at mine.py, line 3, in forward: print" in text


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
    hostile = FUSED.model_copy(update={"work": CompilerWork(facts=["<script>alert(1)</script>"])})
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
    return ProfiledCell(known.model_copy(update={"needs": needs}), record(label), CEILINGS)


def bounds(cell: ProfiledCell) -> dict[str, str]:
    return {shown.name_of(row): shown.bound_text(row.bound) for row in explain([cell], 2).rows}


def test_one_modules_row_has_the_ceiling_that_bounds_it() -> None:
    usual, moving = (1e8, 1e5), (0, 6e6)
    assert bounds(with_needs(EAGER, _=usual, layers=usual, layers_0=usual, layers_1=moving)) == {
        shown.THE_MODEL: "",  # its time is its own, and its work is that of all modules
        "layers.0": "compute, 8.3 %",  # 0.1 of 1.2 ms
        "layers.1": "memory, 50 %",  # 0.6 of 1.2 ms
    }
    fused = bounds(with_needs(FUSED, layers_0=usual))
    assert fused["layers.0 + layers.1"] == "" and fused["layers.0"] == "compute"  # another row works for it, too


def test_a_row_that_is_faster_than_the_ceiling_says_what_that_means() -> None:
    fast = with_needs(EAGER, "eager", layers_1=(3e9, 1e5))  # 3 of 1.2 ms
    beside_another = [ProfiledCell(FUSED, record(), CEILINGS), fast]  # no row shows the bound
    for cells, is_said in (([fast], True), ([with_needs(EAGER, layers_1=(1e9, 1e5))], False), (beside_another, False)):
        text = to_markdown(explain(cells, 2), cells)
        assert ("faster than the machine's measured ceiling" in text) == is_said
    assert any(row.against_bound for row in explain(beside_another, 2).rows)


def test_calls_that_are_not_as_in_the_run_are_told() -> None:
    threads = ThreadUse(allowed=1, busy=[0.9])
    here = FUSED.model_copy(update={"median_ms": 1.5, "threads": threads, "versions": {"torch": "2.13.0"}})
    there = record().model_copy(update={"settings": {"threads": 2}, "versions": {"torch": "2.12.0", "numpy": "2.0"}})
    assert differences(ProfiledCell(FUSED, record())) == []
    cells = [ProfiledCell(here, there)]
    whats = [(each.what, each.in_run, each.in_profile) for each in differences(cells[0])]
    assert whats == [("latency in ms", 1.014, 1.5), ("threads", 2, 1), ("torch", "2.12.0", "2.13.0")]
    text = to_markdown(explain(cells), cells)
    assert "its median latency was 1.014 ms there, and is 1.500 ms here (1.000 ms in the fastest quarter" in text
    assert "fused takes 1.000 ms a call" in text
    from_host = there.cell.model_copy(update={"inputs_from": "host"})
    (change,) = differences(ProfiledCell(FUSED, record().model_copy(update={"cell": from_host})))
    assert (change.what, change.in_run, change.in_profile) == ("source of inputs", "host", "device")


@pytest.mark.parametrize(("run_ms", "has_ratio"), [(2.5, True), (0.1, False)])
def test_a_cell_that_is_far_from_what_the_run_measured_has_no_ratio(run_ms: float, has_ratio: bool) -> None:
    cells = [ProfiledCell(FUSED, record()), ProfiledCell(EAGER, record("eager", run_ms))]
    explanation = explain(cells, 2)
    assert any(row.ratio for row in explanation.rows) == has_ratio
    said = shown.headline(explanation)
    if has_ratio:
        assert said == "fused takes 1.000 ms a call, and eager 3.000 ms: 3.00x."
    else:
        assert said.startswith("fused takes 1.000 ms a call, and eager 3.000 ms here. No ratio is told, because eager ")


def test_what_compilers_did_is_told_in_sentences() -> None:
    work = CompilerWork(recompilations=["x.size(0) == 8"], fallbacks=["aten.foo"])
    copy = part(0.2, name="Reorder", kind=Kind.COPY)
    threads = ThreadUse(allowed=2, busy=[0.9, 0.45, 0.1])
    did = FUSED.model_copy(update={"work": work, "parts": [*FUSED.parts, copy], "threads": threads})
    assert shown.work_lines(did) == [
        "Compiled again, because this guard failed: x.size(0) == 8",
        "Left to another engine: aten.foo.",
        "Of what works for several modules, k takes longest, for layers.0.norm and layers.1.",
        "Casts, copies and changes of layout in a call: Reorder 1 time (0.1000 ms).",
        "It may use 2 threads, which were on a core for 90 %, 45 % of the time: the mean is 75 % of the busiest, "
        "beside 1 more.",
    ]


def test_one_thread_was_on_a_core() -> None:
    line = shown.threads_line(ThreadUse(allowed=1, busy=[0.98]))
    assert line == "It may use one thread, which was on a core for 98 % of the time."


def test_an_incorrect_cell_is_called_so_beside_another() -> None:
    mine, other = beside(FUSED, EAGER)
    wrong = other.record.model_copy(update={"status": Status.INCORRECT, "reason": "rmse 0.65"})
    cells = [mine, other._replace(record=wrong)]
    explanation = explain(cells)
    assert explanation.incorrect == {"eager": "rmse 0.65"}
    assert "**eager is incorrect in the run: rmse 0.65." in to_markdown(explanation, cells)
    assert explain([mine, other]).incorrect == {}


def test_cells_of_the_same_label_are_told_apart_and_say_in_what_they_differ() -> None:
    def cell(**changed: Any) -> ProfiledCell:
        small = samples.cell("eager", **changed)
        return ProfiledCell(EAGER, samples.ok(small, samples.bursts(1.0)))

    cells = named_apart([cell(), cell(precision=Precision.BF16)])
    assert [each.profile.label for each in cells] == ["eager fp32", "eager bf16"]
    assert "The two calls differ: fp32 and bf16." in to_markdown(explain(cells), cells)
    cells = named_apart([cell(dimensions={"batch": 1}), cell(dimensions={"batch": 8})])
    assert [each.profile.label for each in cells] == ["eager batch 1", "eager batch 8"]
    assert named_apart(beside(FUSED, EAGER)) == beside(FUSED, EAGER)


def test_a_row_that_the_profilers_own_time_hides_has_no_ratio_and_no_bound() -> None:
    needs = {path: Work(flops=10**8, bytes_moved=10**5) for path in ("layers.0", "layers.1")}

    def table(*parts: ProfiledKernel, profiled_ms: float) -> dict[str, tuple[bool, float | None, str]]:
        mine = profile("onnx", *parts, profiled_ms=profiled_ms).model_copy(update={"needs": needs})
        cells = [ProfiledCell(mine, record(), CEILINGS), ProfiledCell(EAGER, record("eager", 3.0))]
        rows = explain(cells, 2).rows
        return {shown.name_of(row): (row.is_rough, row.ratio, shown.bound_text(row.bound)) for row in rows}

    many = ProfiledKernel(name="k", modules=("layers.1",), ms=9.0, runs=99)
    one = part(1.0, "layers.0")
    told = table(many, one, profiled_ms=10.0)
    assert told["layers.0"] == (True, None, "")  # a tenth of the call, or 0.91 ms of it
    assert told["layers.1"][0]  # 0.9 ms, or 0.09 ms
    assert not any(rough for rough, _, _ in table(many, part(9.0 / 99, "layers.0"), profiled_ms=9.1).values())
    quick = {"ms": 0.9}, {"ms": 0.1}
    parts = [each.model_copy(update=change) for each, change in zip((many, one), quick, strict=True)]
    assert table(*parts, profiled_ms=1.0)["layers.0"] == (False, pytest.approx(12), "compute, 100 %")
    cells = [ProfiledCell(profile("onnx", many, one, profiled_ms=10.0), record())]
    text = to_markdown(explain(cells, 2), cells)
    assert "| layers.0 | \\~0.1000 |" in text and "Most of a profiled call of onnx is the profiler's own time" in text


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
def test_kernels_are_told_without_what_a_compiler_adds(name: str, plain: str) -> None:
    assert kernel_name(name) == plain
