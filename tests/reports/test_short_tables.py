"""No table of the short report has more than nine columns, whatever was asked for."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from bakeoff.judging.judgement import judge
from bakeoff.records.metrics import Metric, Metrics
from bakeoff.records.precision import Precision
from bakeoff.records.schema import DECODE, PREFILL, AroundCall, Energy, Generated, Range, Record
from bakeoff.records.start_samples import Start, StartedCell
from bakeoff.reports.markdown import MOST_COLUMNS
from bakeoff.reports.run_report import to_markdown, to_short_markdown
from tests.judging.test_load import load, window
from tests.reports.samples import accuracy, cell, ok, report, steady

KINDS = ("precisions", "metrics", "end to end", "energy", "dynamic", "load", "generation", "calls", "starts")
COMBINATIONS = [
    pytest.param(each, marks=[pytest.mark.slow] if count == len(KINDS) - 1 else [], id=", ".join(each))
    for count in (0, 1, len(KINDS) - 1, len(KINDS))
    for each in itertools.combinations(KINDS, count)
]
"""Nothing, each alone, all but one, and all of it."""
SCORES = Metrics(values={name: Metric.of_scores([1.0] * 50) for name in ("top1", "top5", "recall", "f1", "bleu")})
SOAK = [window(joules=50.0, resident_bytes=9, device_bytes=9)] * 6
SIZES = {"batch": 4, "prompt": 64, "new_tokens": 11}


def records(chosen: Iterable[str]) -> list[Record]:
    """Return a contest of three backends, or the two of a generation, with all that was chosen."""
    chosen = set(chosen)
    precisions = (Precision.FP32, Precision.BF16) if "precisions" in chosen else (Precision.FP32,)
    made = []
    for task in (PREFILL, DECODE) if "generation" in chosen else ("inference",):
        for precision, (place, name) in itertools.product(precisions, enumerate(("onnx", "openvino", "eager"), 1)):
            compared = precisions if len(precisions) > 1 else ()
            measured = cell(name, task=task, dimensions=SIZES, precision=precision, compared=compared)
            if "dynamic" in chosen and name == "onnx":
                measured = measured.model_copy(update={"dynamic": {"batch": Range(low=1, built_at=4, high=4)}})
            made.append(
                ok(measured, steady([1.0 * place] * 3, rounds=4), build_s=2.0, **more(chosen, measured.id, name, place))
            )
    return made


def more(chosen: set[str], cell_id: str, name: str, place: int) -> dict[str, object]:
    fields: dict[str, dict[str, object]] = {
        "metrics": {"metrics": SCORES, "reference_metrics": SCORES},
        "end to end": {"around": [AroundCall(name="before", calls=9, median_ms=2.0)]},
        "energy": {"energy": Energy(joules_per_call=0.1, idle_w=70.0, calls=1000, seconds=1.0, source="RAPL")},
        "load": {"load": load([rate / place for rate in (400, 404, 396)], soak=SOAK)},
        "generation": {"settings": {"caches": "in place"}, "generated": GENERATED},
        "starts": {"starts": [started(cell_id, name)]},
    }
    chosen_fields = {key: value for kind in fields if kind in chosen for key, value in fields[kind].items()}
    return {"accuracy": accuracy(), **chosen_fields}


GENERATED = Generated(tokens=10, sequences=4, agreed=10, usual_margin=0.5, first=Precision.FP32, agreed_with_first=9)


def started(cell_id: str, label: str) -> StartedCell:
    start = Start(
        interpreter_s=0.1,
        imports_s=1.0,
        load_s=0.1,
        first_answer_s=0.1,
        later_answers_s=0.1,
        peak_bytes=9,
        steady_bytes=9,
        device_bytes=9,
    )
    return StartedCell(cell_id=cell_id, label=label, distributions={"torch": 9}, artifact_bytes=9, starts=[start] * 3)


def columns(markdown: str) -> list[list[str]]:
    """Return the headings of each table."""
    lines = markdown.splitlines()
    rules = [number for number, line in enumerate(lines) if re.fullmatch(r"\|( :?-+:? \|)+", line)]
    return [[text.strip() for text in re.split(r"(?<!\\)\|", lines[number - 1])[1:-1]] for number in rules]


@pytest.mark.parametrize("chosen", COMBINATIONS)
def test_no_table_has_more_than_nine_columns(chosen: tuple[str, ...], tmp_path: Path) -> None:
    calls = {"calls": 1000} if "calls" in chosen else {}
    judgement = judge(report(records(chosen), request=calls | {"price": "1/h"}))
    tables = columns(to_short_markdown(judgement, tmp_path))
    assert tables and max(map(len, tables)) <= MOST_COLUMNS == 9
    of_cells = next(table for table in tables if "median latency (ms) [95 %]" in table)
    assert {"rank", "backend", "status"} <= set(of_cells)
    if not {"metrics", "precisions"} & set(chosen):
        assert len(of_cells) == 9 and "throughput (calls/s)" in of_cells
    if "metrics" in chosen:
        assert "top1 (change) [95 %]" in of_cells and max(map(len, columns(to_markdown(judgement)))) > 9
