"""Profiles are summed up by module, down to a depth, and put side by side."""

from __future__ import annotations

import json

import pytest

from bakeoff.judging.explanation import Explanation, explain, fitting_depth, tree_of
from bakeoff.records.profile import CellProfile, CompilerWork, GraphBreak, Kind, Part, TracedSpan
from bakeoff.reports import explanation as shown
from bakeoff.reports.command_answers import document, of_explanation
from bakeoff.reports.page import explanation_to_page
from tests.reports import samples

CLASSES = {"": "Net", "layers": "Sequential", "layers.0": "Layer", "layers.0.norm": "LayerNorm", "layers.1": "Layer"}


def profile(label: str, *parts: Part, call_ms: float = 1.0, profiled_ms: float = 2.0) -> CellProfile:
    return CellProfile(
        label=label,
        cell_id=label,
        source="a profiler",
        call_ms=call_ms,
        profiled_ms=profiled_ms,
        calls=3,
        parts=list(parts),
        spans=[TracedSpan(name=part.name, modules=part.modules, begun_us=0, lasted_us=part.ms * 1e3) for part in parts],
        classes=CLASSES,
        work=CompilerWork(breaks=[GraphBreak(reason="print", place="mine.py, line 3, in forward")], facts=["Two."]),
    )


def part(ms: float, *modules: str, name: str = "k", kind: Kind = Kind.COMPUTE) -> Part:
    return Part(name=name, modules=modules, kind=kind, ms=ms, runs=1)


EAGER = profile("eager", part(0.8, "layers.0.norm"), part(0.8, "layers.1"), part(0.4, ""), call_ms=3.0)
FUSED = profile("fused", part(1.2, "layers.0.norm", "layers.1"), part(0.4, "layers.0"), part(0.3, kind=Kind.FRAMEWORK))


def rows(explanation: Explanation) -> dict[str, tuple[float | None, float | None]]:
    return {shown.name_of(row): (row.ms, row.against_ms) for row in explanation.rows}


def test_rows_and_residual_sum_to_the_call() -> None:
    explanation = explain(FUSED, EAGER, depth=3)
    assert sum(row.ms or 0 for row in explanation.rows) + explanation.residual_ms == pytest.approx(1.0)
    assert sum(row.against_ms or 0 for row in explanation.rows) == pytest.approx(3.0)
    assert explanation.residual_ms == pytest.approx(0.05)
    assert explanation.profiling_cost == 2.0


def test_a_kernel_for_several_modules_is_one_row_that_names_them() -> None:
    found = rows(explain(FUSED, EAGER, depth=3))
    assert found["layers.0.norm + layers.1"] == (pytest.approx(0.6), None)
    assert found["(framework)"] == (pytest.approx(0.15), None)
    assert found[shown.THE_MODEL] == (None, pytest.approx(0.6))


def test_modules_fold() -> None:
    assert list(rows(explain(EAGER, depth=1))) == [shown.THE_MODEL, "layers"]
    assert list(rows(explain(FUSED, depth=2))) == ["layers.0", "layers.0 + layers.1", "(framework)"]


def test_without_a_depth_the_deepest_one_with_few_rows_is_taken() -> None:
    assert fitting_depth([EAGER]) == 3
    many = {"": "Net", **{f"layers.{number}.norm": "LayerNorm" for number in range(30)}}
    crowded = EAGER.model_copy(update={"classes": many, "parts": [part(0.1, path) for path in many]})
    assert fitting_depth([crowded]) == 1


def test_a_residual_beyond_a_twentieth_is_told() -> None:
    loose = profile("loose", part(1.0, "layers.1"))
    assert explain(FUSED).is_whole and not explain(loose).is_whole
    assert "rows sum to 50 % less than the call (not within 5 %)" in shown.to_markdown(explain(loose), [loose])


def test_the_table_compares_and_tells_what_compilers_did() -> None:
    text = shown.to_markdown(explain(FUSED, EAGER, depth=2), [FUSED, EAGER])
    assert "**fused takes 1.000 ms a call, and eager 3.000 ms: 3.00x.**" in text
    assert "| layers.0 | 0.2000 | 20 | 1.200 | 6.00 | k 100 % |" in text
    assert "- Graph break at mine.py, line 3, in forward: print" in text


def test_json_and_trace_hold_every_kernel() -> None:
    explanation = explain(FUSED, EAGER)
    answer = json.loads(document(of_explanation(explanation, [FUSED, EAGER]), 0))
    assert [len(each["parts"]) for each in answer["profiles"]] == [3, 3]
    events = json.loads(shown.to_chrome_trace([FUSED, EAGER]))["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    assert sum(event["ph"] == "X" for event in events) == 6


def test_the_tree_keeps_all_time_and_divides_no_kernel() -> None:
    root = tree_of(FUSED, EAGER)
    assert (root.ms, root.against_ms) == (pytest.approx(1.0), pytest.approx(3.0))
    layers, *others = root.branches
    assert layers.name == "layers" and {branch.name for branch in others} == {"(framework)", "(no row has it)"}
    assert [branch.name for branch in layers.branches] == ["0.norm + 1", "0", "1"]
    assert layers.branches[0].ms == pytest.approx(0.6)


def test_the_page_shows_both_cells_and_escapes_what_is_foreign() -> None:
    records = [samples.ok(samples.cell(label), samples.bursts(1.0)) for label in ("onnx", "eager")]
    hostile = FUSED.model_copy(update={"label": "onnx", "work": CompilerWork(facts=["<script>alert(1)</script>"])})
    page = explanation_to_page(explain(hostile, EAGER), [hostile, EAGER], records)
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    assert page.count("<details") == 3 and "0.norm + 1" in page and "onnx takes 1.000 ms a call" in page
