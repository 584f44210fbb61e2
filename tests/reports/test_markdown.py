"""A report as Markdown: its sections, and what folds away. The table of cells is in test_columns.py."""

import re

from bakeoff.records.schema import Status
from bakeoff.reports.run_report import to_markdown
from tests.reports.samples import bursts, caveat, cell, conv_on_cpu, failed, judged, ok


def fold(markdown: str, summary: str) -> list[str]:
    """Return the lines that unfold below a summary."""
    return markdown.split(f"<details><summary>{summary}</summary>")[1].split("</details>")[0].strip().splitlines()


def test_every_link_of_the_contents_leads_to_a_section_and_one_contest_has_none() -> None:
    markdown = to_markdown(judged())
    (contents,) = re.findall(r"^Contents: .*$", markdown, flags=re.M)
    links, anchors = re.findall(r"\]\(#(.*?)\)", contents), re.findall(r'<a id="(.*?)">', markdown)
    assert sorted(links) == sorted(anchors)
    assert "Contents" not in to_markdown(judged(conv_on_cpu()))


def test_remarks_that_do_not_bear_on_the_winner_fold_away() -> None:
    slower = ok(cell("onnx"), bursts(2.0, seed=1), doubts=[caveat("of another cell")])
    markdown = to_markdown(judged([ok(cell(), bursts(1.0), doubts=[caveat("of the winner")]), slower]))
    assert "What could change the winner's numbers:\n\n- eager: of the winner\n" in markdown
    assert fold(markdown, "Other remarks") == ["- onnx: of another cell"]


def test_a_long_reason_stands_whole_below_the_tables() -> None:
    reason = "word " * 100 + "the end"
    markdown = to_markdown(judged([ok(cell(), bursts(1.0)), failed(cell("onnx"), Status.ERROR, reason)]))
    assert reason in markdown[markdown.index("</a>What failed") :]
    assert "What failed" not in to_markdown(judged([failed(cell("onnx"), Status.UNAVAILABLE, "no library")]))
    absent = to_markdown(judged([ok(cell(), bursts(1.0)), failed(cell("onnx"), Status.UNAVAILABLE, reason)]))
    assert absent.count(reason) == 1 and "What failed" not in absent
