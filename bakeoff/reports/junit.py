"""JUnit's XML, which CI systems show as tests: one test case for each cell."""

import contextlib
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from xml.etree import ElementTree

from bakeoff.judging.compare import CellChange, Comparison, Outcome
from bakeoff.judging.intervals import covered
from bakeoff.judging.judgement import Judgement
from bakeoff.records.grouping import grouped
from bakeoff.records.schema import Cell, Record, Report, Status
from bakeoff.records.text import visible
from bakeoff.reports import headline, number_format, sentences

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_WRONG = {Status.INCORRECT, Status.FALLBACK}
"""Statuses that are a failure in JUnit's words: the test ran, and its result was not the expected one."""

_JUDGED = {Outcome.SAME, Outcome.WORSE, Outcome.SLOWER, Outcome.FASTER, Outcome.MENDED}

Case = tuple[ElementTree.Element, Cell, Record | None]


def of_run(judgement: Judgement) -> str:
    """Return the cells of a run, and the answer of each contest as a property of its suite. A cell that was not
    measured is skipped, unless it was asked for by name."""
    report = judgement.report
    answers = {contest.contest_id: headline.line(contest) for contest in judgement.contests}
    return _document(report, [(_case_of(record), record.cell, record) for record in report.records], answers)


def of_comparison(compared: Comparison, fail_on: Collection[str]) -> str:
    failing = compared.failing(fail_on)
    cases = [(_case_of_change(change, change in failing), change.cell, change.new) for change in compared.cells]
    return _document(compared.new, cases)


def _case_of(record: Record) -> ElementTree.Element:
    case = _case(record.cell, record.elapsed_s)
    if record.latency:
        _add(case, "system-out", text=f"median {number_format.median(record.latency)} ms")
    if record.status is Status.OK:
        return case
    if record.status.is_absence and not record.asked_by_name:
        _add(case, "skipped", record.status.value, record.reason)
    else:
        is_wrong = record.status in _WRONG or record.status.is_absence
        _add(case, "failure" if is_wrong else "error", number_format.ending(record), record.reason, record.log_tail)
    return case


def _case_of_change(change: CellChange, is_failing: bool) -> ElementTree.Element:
    case = _case(change.cell, change.new.elapsed_s if change.new else 0.0)
    change_of_latency = number_format.spell_change(change.raw) if change.raw else ""
    text = ": ".join(filter(None, [change_of_latency, sentences.why(change)]))
    if is_failing:
        _add(case, "failure", change.outcome.value, text, change.new.log_tail if change.new else "")
    elif change.outcome in _JUDGED:
        _add(case, "system-out", text=f"{change.outcome.value}: {text}")
    else:
        _add(case, "skipped", change.outcome.value, text)
    return case


def _document(report: Report, cases: Iterable[Case], answers: Mapping[str, str] | None = None) -> str:
    root = ElementTree.Element("testsuites", name="bakeoff")
    where = {"timestamp": _text(report.created_at), "hostname": _text(report.environment.hostname)}
    for contest_id, of_contest in grouped(cases, lambda case: case[1].contest_id).items():
        suite = ElementTree.SubElement(root, "testsuite", {"name": _text(of_contest[0][1].title)} | where)
        if answers:
            properties = ElementTree.SubElement(suite, "properties")
            ElementTree.SubElement(properties, "property", name="answer", value=_text(answers[contest_id]))
        suite.extend(case for case, _, _ in of_contest)
        _count(suite, min(_elapsed_s(record for _, _, record in of_contest if record), report.elapsed_s))
    _count(root, report.elapsed_s)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _elapsed_s(records: Iterable[Record]) -> float:
    """Return the seconds in which at least one of these cells was measured: those of a contest share its rounds. The
    beginning of a cell is known to the second."""
    spans, longest_s = [], 0.0
    for record in records:
        longest_s = max(longest_s, record.elapsed_s)
        with contextlib.suppress(ValueError):  # an older report, or another program's, does not say when
            began_s = datetime.fromisoformat(record.started_at).timestamp()
            spans.append((began_s, began_s + record.elapsed_s))
    return max(covered(spans), longest_s)


def _count(suite: ElementTree.Element, elapsed_s: float) -> None:
    suite.set("tests", str(len(list(suite.iter("testcase")))))
    for attribute, tag in {"failures": "failure", "errors": "error", "skipped": "skipped"}.items():
        suite.set(attribute, str(len(list(suite.iter(tag)))))
    suite.set("time", f"{elapsed_s:.3f}")


def _case(cell: Cell, elapsed_s: float) -> ElementTree.Element:
    return ElementTree.Element("testcase", classname=_text(cell.title), name=_text(cell.label), time=f"{elapsed_s:.3f}")


def _add(case: ElementTree.Element, tag: str, kind: str = "", message: str = "", text: str = "") -> None:
    attributes = {"type": _text(kind), "message": _text(message)} if kind else {}
    ElementTree.SubElement(case, tag, attributes).text = _text(text) or None


def _text(text: str) -> str:
    return _NOT_IN_XML.sub("", visible(text))
