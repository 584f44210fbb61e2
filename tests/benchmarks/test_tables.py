"""Results that scripts keep, and the tables that they make of them."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import breadth, published, shipped_models
from benchmarks.common import Lines
from tests.support.checkout import ROOT


def row(label: str, ms: float | None, speedup: float | None = None, status: str = "ok") -> dict[str, Any]:
    ends = {"speedup_ci95_low": speedup and speedup * 0.99, "speedup_ci95_high": speedup and speedup * 1.01}
    return {"label": label, "median_ms": ms, "speedup": speedup, "status": status, "reason": "", "build_s": 2.0} | ends


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_line_that_a_stop_has_cut_is_left_out_and_replaced(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "new" / "results.jsonl")
    assert lines.read() == []
    lines.append({"number": 1})
    with lines.path.open("a") as file:
        file.write('{"number": ')
    assert lines.read() == [{"number": 1}]
    lines.append({"number": 2})
    assert lines.read() == [{"number": 1}, {"number": 2}]


@pytest.mark.parametrize(
    ("eager_ms", "ours", "said"), [(6.0, 3.1, "yes"), (6.0, 3.2, "NO"), (0.6, 4.0, "no limit: under 1 ms")]
)
def test_ratios_of_calls_over_a_millisecond_have_a_tolerance(eager_ms: float, ours: float, said: str) -> None:
    problem = published.PROBLEMS[0]
    script = {
        f"{name}{hot}_ms": ms for name, ms in (("eager", eager_ms), ("inductor", eager_ms / 3)) for hot in ("", "_hot")
    }
    results = [
        {"way": "script", "problem": problem.name, "settings": "fp32", "seconds": 9.0} | script,
        {
            "way": "bakeoff",
            "problem": problem.name,
            "settings": "fp32",
            "rows": [row("eager", eager_ms, 1.0), row("inductor", eager_ms / ours, ours)],
        },
    ]
    *_, line = published.agreement_table([problem], results).splitlines()
    assert cells(line)[2:4] == ["3.62", "3.000"]
    assert cells(line)[6].startswith(f"{ours:.3f} [")
    assert cells(line)[-1] == said


def test_a_problem_is_measured_once_and_the_script_first() -> None:
    regnet = next(problem for problem in published.PROBLEMS if problem.name == "27_RegNet")
    done = [{"way": "script", "problem": regnet.name, "settings": "fp32"}]
    assert [(way, settings) for way, _, settings in published.missing([regnet], done)] == [
        ("script", "published"),
        ("script", "tf32"),
        ("bakeoff", "fp32"),
        ("bakeoff", "tf32"),
    ]


def test_shares_and_means_over_models() -> None:
    right = {"outcome": "sure", "candidates": [], "seconds": 60.0}
    results = [
        {"model": "a", "winner": "onnx", "rows": [row("eager", 4.0), row("onnx", 1.0)]} | right,
        {"model": "b", "winner": None, "rows": [row("eager", 1.005), row("onnx", 1.0)]} | right,
        {"model": "c", "winner": "eager", "rows": [row("eager", 2.0), row("onnx", 1.0, status="incorrect")]} | right,
    ]
    lines = {cells(line)[0]: cells(line)[1:] for line in shipped_models.backends_table(results).splitlines()[2:]}
    assert lines["`onnx`"] == ["2 of 3", "2", "67%", "2.00", "1.00", "2"]
    assert lines["`eager`"][:4] == ["3 of 3", "1", "67%", "1.00"]
    assert "onnx (incorrect)" in shipped_models.models_table(results).splitlines()[-1]


def test_the_shipped_models_are_ten_and_have_names_of_their_own() -> None:
    asked = list(shipped_models.asked_in("shipped"))
    assert len({one.name for one in asked}) == 10
    assert asked[-2].arguments(["prompt=8"])[-4:] == ["--set", "prompt=8", "--set", "new_tokens=128"]
    paths = [part for one in asked for part in one.model.split(":") if part.startswith("presets/")]
    assert len(paths) == 7 and all((ROOT / "bakeoff" / path).exists() for path in paths)


def test_graphs_are_of_every_source_in_turns_and_the_smallest_first(tmp_path: Path) -> None:
    for folder, shapes in {"a/x": "[4]", "a/y": "[5]", "a/z": "[2]", "b/large": "[9, 9]", "c/v": "[]"}.items():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "weight_meta.py").write_text(f"class T:\n\tname = 'T'\n\tshape = {shapes}\n")
    chosen = breadth.graphs_of(tmp_path, count=3, numbers=5)
    assert len(chosen) == 3 and chosen[0] == f"graphnet:{tmp_path}/c/v"
    assert [Path(name).parent.name for name in chosen] == ["c", "a", "a"]


def test_builds_that_are_not_right_are_counted_and_named() -> None:
    def check(label: str, status: str, reason: str = "") -> dict[str, str]:
        return {"model": "m", "label": label, "status": status, "reason": reason, "unchecked": ""}

    checks = [check("eager", "ok"), check("onnx", "incorrect", "off"), check("openvino", "error", "no such operator")]
    _, _, *rows = breadth.report(
        [{"model": "m", "checks": checks}, {"model": "n", "checks": [], "refused": "no model"}]
    ).splitlines()
    assert [cells(line)[1:] for line in rows[:3]] == [["1", "0", "0"], ["0", "1", "0"], ["0", "0", "1"]]
    assert rows[4:] == ["- n: no model", "- onnx of m: incorrect: off", "- openvino of m: error: no such operator"]
