"""What a run and a comparison leave for a CI system: JUnit's XML, and a summary of a few lines."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from bakeoff.judging.compare import Comparison, compare, parse_fail_on
from bakeoff.judging.judgement import judge
from bakeoff.records.schema import Record, Report, Status
from bakeoff.reports import junit, summary
from tests.reports.samples import HOSTILE, cell, failed, judged, ok, report, steady, sweep

LEVELS = [1.0, 1.0, 1.0]


def compared(*statuses: Status | None, factor: float = 1.0, copies: int = 1) -> Comparison:
    """Two runs of eager and a cell for each status, which in the new run ended so; None is `ok`."""
    base: list[Record] = [ok(cell(), steady(LEVELS))]
    new: list[Record] = [ok(cell(), steady(LEVELS))]
    for number, status in enumerate(statuses * copies):
        one = cell("onnx", f"mode-{number}")
        base.append(ok(one, steady(LEVELS)))
        slower = steady([factor * level for level in LEVELS])
        new.append(failed(one, status, HOSTILE) if status else ok(one, slower))
    return compare(report(base), report(new))


def cases(xml: str) -> dict[str, list[str]]:
    """Return the names of what each test case holds."""
    root = ElementTree.fromstring(xml)
    return {case.attrib["name"]: [child.tag for child in case] for case in root.iter("testcase")}


def test_the_time_of_a_suite_is_what_passed_and_not_the_sum_of_cells_that_share_rounds() -> None:
    def lasted(label: str, began: str, elapsed_s: float, model: str = "conv") -> Record:
        update = {"started_at": f"2026-11-27T08:00:{began}+00:00", "elapsed_s": elapsed_s}
        return ok(cell(label, model=model), steady(LEVELS)).model_copy(update=update)

    both = [lasted("eager", "00", 20.0), lasted("onnx", "02", 18.5), lasted("inductor", "05", 5.0)]
    alone = [lasted("eager", "30", 5.0, "mlp"), lasted("onnx", "40", 4.0, "mlp")]  # it was resumed in between
    found = report([*both, *alone]).model_copy(update={"elapsed_s": 31.0})
    for xml in (junit.of_run(judge(found)), junit.of_comparison(compare(found, found), parse_fail_on("broken"))):
        root = ElementTree.fromstring(xml)
        assert [root.attrib["time"], *(suite.attrib["time"] for suite in root)] == ["31.000", "20.500", "9.000"]


def test_text_that_xml_cannot_hold_is_left_out() -> None:
    found = report([failed(cell("onnx"), Status.CRASH, "\x00\x1b[31mred\x1b[0m \ud800 & <b>")])
    (error,) = ElementTree.fromstring(junit.of_run(judge(found))).iter("error")
    assert error.attrib["message"] == "red  & <b>"


@pytest.mark.parametrize(("words", "tag"), [("slower,broken", "failure"), ("broken", "system-out")])
def test_a_comparison_fails_the_cases_that_fail_its_gate(words: str, tag: str) -> None:
    xml = junit.of_comparison(compared(None, factor=1.2), parse_fail_on(words))
    assert cases(xml) == {"onnx/mode-0": [tag], "eager": ["system-out"]}


def test_a_case_of_which_nothing_can_be_told_is_skipped() -> None:
    one = report([ok(cell(), steady([1.0]))])
    assert cases(junit.of_comparison(compare(one, one), parse_fail_on("slower"))) == {"eager": ["skipped"]}


def test_the_summary_names_the_libraries_that_gave_a_number() -> None:
    gave = ok(cell("theirs"), steady([1.0]), versions={"torch": "2.9.0", "theirs-lib": "1.2"})
    lost = failed(cell("lost"), Status.CRASH, "signal 11", versions={"lost-lib": "3.4"})
    text = summary.of_run(judged([gave, lost]))
    assert "torch 2.9.0, theirs-lib 1.2" in text and "lost-lib" not in text


@pytest.mark.parametrize(
    "found",
    [
        report(),
        sweep(40, 2),
        report([failed(cell("onnx", f"mode-{number}"), Status.CRASH, HOSTILE) for number in range(50)]),
        sweep(40, 2).model_copy(update={"complete": False}),
    ],
    ids=["three contests", "a sweep", "failures", "interrupted"],
)
def test_the_summary_of_a_run_is_short(found: Report) -> None:
    lines = summary.of_run(judge(found)).splitlines()
    assert len(lines) <= 30 and lines[-1].startswith(("NVIDIA H200", "AMD EPYC"))


@pytest.mark.parametrize("statuses", [(None, Status.CRASH), (None, None)])
def test_the_summary_of_a_comparison_is_short(statuses: tuple[Status | None, ...]) -> None:
    found = compared(*statuses, factor=1.2 if any(statuses) else 1.0, copies=30)
    text = summary.of_comparison(found)
    assert len(text.splitlines()) <= 30
    assert f"Not shown: {len(found.cells) - 14} cells" in text
