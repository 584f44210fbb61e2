"""A report as Markdown: its sections, and what folds away. The table of cells is in test_columns.py."""

import re

from bakeoff.records.schema import Status
from bakeoff.reports.run_report import to_markdown
from tests.reports.samples import (
    bursts,
    caveat,
    cell,
    conv_on_cpu,
    failed,
    judged,
    ok,
    product_on_cuda,
    strictly_on_cpu,
)


def fold(markdown: str, summary: str) -> list[str]:
    """Return the lines that unfold below a summary."""
    return markdown.split(f"<details><summary>{summary}</summary>")[1].split("</details>")[0].strip().splitlines()


def test_the_winners_come_first_and_the_method_last() -> None:
    markdown = to_markdown(judged())
    parts = ["# conv, mlp and ", "| contest | best |", "Contents: ", "## <a id=",
             "**onnx wins at", "| rank |", "</a>What failed", "</a>How it was", "</a>Environment"]  # fmt: skip
    places = [markdown.index(part) for part in parts]
    assert places == sorted(places)
    assert markdown.count("| rank |") == 3
    assert "| [mlp, cuda, fp16](#contest-2) | onnx or tensorrt | 0.07529 ms | 1.36x eager | **undecided** |" in markdown


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


def test_floor_and_tensor_cores_stand_below_the_table_where_they_are_known() -> None:
    markdown = to_markdown(judged(product_on_cuda()))
    nominal = "Tensor cores: 1.07 PFLOP/s nominally, at the highest clock of 1.98 GHz; a large product reaches 68 % of"
    assert markdown.index("| rank |") < markdown.index("Floor: 1.502 ms") < markdown.index(nominal)
    memory_bound = to_markdown(judged(strictly_on_cpu()))
    assert "Floor: 0.1514 ms, bound by memory (872 MFLOP at 19.9 TFLOP/s, 6.84 MB at 45.2 GB/s)." in memory_bound
    assert "ensor cores" not in memory_bound
    assert "loor" not in to_markdown(judged(conv_on_cpu()))


def test_a_long_reason_stands_whole_below_the_tables() -> None:
    reason = "word " * 100 + "the end"
    markdown = to_markdown(judged([ok(cell(), bursts(1.0)), failed(cell("onnx"), Status.ERROR, reason)]))
    assert reason in markdown[markdown.index("</a>What failed") :]
    assert "What failed" not in to_markdown(judged([failed(cell("onnx"), Status.UNAVAILABLE, "no library")]))
    absent = to_markdown(judged([ok(cell(), bursts(1.0)), failed(cell("onnx"), Status.UNAVAILABLE, reason)]))
    assert absent.count(reason) == 1 and "What failed" not in absent


def test_pictures_are_embedded_with_their_captions() -> None:
    assert "Figures" not in to_markdown(judged())
    markdown = to_markdown(judged(), figures=["/tmp/run/figures/latency.svg", "latency.png", "samples-2.svg"])
    assert re.findall(r"\]\((.*?\.\w+)\)$", markdown, flags=re.M) == ["figures/latency.svg", "figures/samples-2.svg"]
    assert "single calls (2)]" in fold(markdown, "All the others")[0]


def test_commands_notes_and_environment_are_told() -> None:
    markdown = to_markdown(judged(complete=False, planned=40))
    assert "\n\nIncomplete: 18 of 40 cells have ended or were measured in part." in markdown
    assert "python runner.py --model conv --backends inductor/max-autotune" in markdown
    assert "- children were forked from a server" in markdown
    assert "| host | bench\\|1 |" in markdown
    assert "governor" not in markdown  # it could not be read
    assert "No cell has ended yet." in to_markdown(judged([]))
