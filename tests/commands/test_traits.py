"""Whole runs of models with traits: they are told, and no build that lost what the model does wins."""

import json
from pathlib import Path

import pytest

from bakeoff.judging.judgement import judge
from bakeoff.records.schema import Record, Report, Status
from bakeoff.reports.json_answer import answer_of
from bakeoff.reports.run_report import to_markdown, to_page
from tests.support.checkout import ROOT
from tests.support.measuring import measure

CASES = ROOT / "tests" / "cases"

pytestmark = pytest.mark.slow

MODELS = ("streaming_state", "mc_dropout", "early_exit", "global_flags")

THREADS = 3
"""The model that changes global settings sets so many threads, which no machine plan would give it here."""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("traits")
    for name in MODELS:
        text = (CASES / f"{name}.py").read_text()
        (folder / f"{name}.py").write_text(text.replace("set_num_threads(1)", f"set_num_threads({THREADS})"))
    state, dropout, *others = (f"{folder / name}.py:factory" for name in MODELS)
    exported = measure(folder / "exported", "eager", "torchscript", "onnx", models=[state, dropout])
    traced = measure(folder / "traced", "eager", "torchscript", models=others)
    return exported.model_copy(update={"records": [*exported.records, *traced.records]})


def of_model(report: Report, name: str) -> dict[str, Record]:
    return {record.cell.label: record for record in report.records if f"/{name}.py" in record.cell.model}


@pytest.mark.parametrize(
    ("model", "statuses"),
    [
        ("streaming_state", (Status.OK, Status.OK, Status.INCORRECT)),
        ("mc_dropout", (Status.OK, Status.OK, Status.INCORRECT)),
        ("early_exit", (Status.OK, Status.INCORRECT)),
        ("global_flags", (Status.OK, Status.OK)),
    ],
)
def test_builds_that_lose_what_the_model_does_are_incorrect(
    report: Report, model: str, statuses: tuple[Status, ...]
) -> None:
    records = of_model(report, model)
    assert records.keys() == set(("eager", "torchscript", "onnx")[: len(statuses)])
    assert tuple(record.status for record in records.values()) == statuses


def test_reasons_name_what_was_lost(report: Report) -> None:
    assert "does not keep the state that the model keeps" in of_model(report, "streaming_state")["onnx"].reason
    assert "the model is random, but this build answers" in of_model(report, "mc_dropout")["onnx"].reason
    frozen = of_model(report, "early_exit")["torchscript"]
    assert "the trace froze a choice by values at early_exit.py, line " in frozen.reason
    assert frozen.placement is not None and frozen.placement.frozen_choices


def test_all_cells_have_the_threads_that_the_models_file_sets(report: Report) -> None:
    threads = {label: record.settings["threads"] for label, record in of_model(report, "global_flags").items()}
    assert threads == dict.fromkeys(("eager", "torchscript"), THREADS)


def test_each_trait_is_reported_once_in_each_form_of_a_report(report: Report, tmp_path: Path) -> None:
    judgement = judge(report)
    told = json.loads(answer_of(judgement, tmp_path).model_dump_json())["about_models"]
    assert len(told) == len(MODELS)
    for text in (to_markdown(judgement), to_page(judgement)):
        for name, words in (
            ("streaming_state", "keeps state from call to call (buffer past)"),
            ("mc_dropout", "is random: two calls with the same inputs differ"),
            ("early_exit", "decides by the values of its inputs, or computes with them in Python, at early"),
            (
                "global_flags",
                f"to {THREADS} and flush-denormal from off to on. All cells run with them, with {THREADS} threads each",
            ),
        ):
            assert sum(name in sentence for sentence in told) == 1
            assert text.replace("\\_", "_").count(words) == 1
