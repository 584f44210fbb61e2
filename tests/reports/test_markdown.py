import re

import pytest

from records.schema import Status
from reports.markdown import DOUBTS_SHOWN, escape, to_markdown
from tests.reports.samples import (
    HOSTILE,
    accuracy,
    cell,
    conv_on_cpu,
    failed,
    hostile_on_cpu,
    judged,
    mlp_on_cuda,
    ok,
    over_processes,
    product_on_cuda,
    strictly_on_cpu,
)
from tests.reports.samples import bursts as bursts_of


def tables(markdown: str) -> list[list[list[str]]]:
    """Every table as rows of cells, split at the pipes that are not escaped."""
    found: list[list[list[str]]] = [[]]
    for line in markdown.splitlines():
        if line.startswith("| "):
            found[-1].append([text.strip() for text in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


def test_the_verdict_comes_first_and_then_a_table_per_contest() -> None:
    markdown = to_markdown(judged())
    assert markdown.index("## Verdict") < markdown.index("onnx wins at") < markdown.index("| rank |")
    assert markdown.index("## How it was measured") < markdown.index("## Environment")
    assert [table[0][0] for table in tables(markdown)[:3]] == ["rank"] * 3


def test_ranked_rows_come_first_then_the_incorrect_then_the_failures() -> None:
    table = tables(to_markdown(judged(conv_on_cpu())))[0]
    assert [row[:2] for row in table[2:]] == [
        ["1", "onnx"],
        ["2", "inductor/max-autotune"],
        ["3", "inductor"],
        ["4", "eager"],
        ["-", "openvino"],
        ["-", "torchscript"],
        ["-", "tensorrt"],
    ]


def test_each_cell_of_the_table_says_what_its_header_does() -> None:
    header, _, *rows = tables(to_markdown(judged(conv_on_cpu())))[0]
    onnx, wrong, crash = (dict(zip(header, rows[place], strict=True)) for place in (0, 4, 5))
    assert re.fullmatch(r"0\.9\d\d \[0\.9\d\d,\xa00\.9\d\d\]", onnx["median latency (ms) [95 %]"])
    assert re.fullmatch(r"1\.8\d \[1\.8\d,\xa01\.8\d\]", onnx["speed-up (x eager) [95 %]"])
    assert onnx["build (s)"] == "0.90 (export 0.18, compile 0.63, load 0.090)"
    assert onnx["peak memory (MiB, resident)"] == "900"
    assert onnx["relative RMSE"] == "1.3e-07 (allclose)"
    assert (onnx["placement"], onnx["status"]) == ("full", "ok")
    assert wrong["median latency (ms) [95 %]"].startswith("0.5")
    assert (wrong["rank"], wrong["speed-up (x eager) [95 %]"]) == ("-", "-")
    assert wrong["status"].startswith("incorrect: error against the golden")
    assert crash["status"] == "crash in load (signal 11): died in load, signal 11"
    assert crash["build (s)"] == "3.9 (export 0.80, compile 3.1)"


@pytest.mark.parametrize(
    ("unheld", "told"),
    [
        (0, "2.0e-01 (allclose)"),
        (13, "2.0e-01 (allclose; bf16 cannot hold the change of 13 of 26 parameters)"),
        (26, "2.0e-01 (allclose; parameters could not be judged: bf16 cannot hold the change of any of 26)"),
    ],
)
def test_the_error_of_a_step_says_what_it_leaves_out(unheld: int, told: str) -> None:
    step = accuracy(0.2).model_copy(update={"changes": 26, "changes_unheld": unheld})
    record = ok(cell("eager", precision="bf16", task="train_step"), bursts_of(1.0), accuracy=step)
    header, _, row = tables(to_markdown(judged([record])))[0]
    assert dict(zip(header, row, strict=True))["relative RMSE"] == told


def test_the_device_has_its_memory_and_a_percentile_may_be_missing() -> None:
    on_cuda, on_cpu = tables(to_markdown(judged([*mlp_on_cuda(), *hostile_on_cpu()])))[:2]
    assert "peak memory (MiB, device)" in on_cuda[0]
    assert on_cuda[2][on_cuda[0].index("peak memory (MiB, device)")] == "412"
    assert on_cpu[2][on_cpu[0].index("p99 (ms)")] == "n/a"


def test_what_never_pays_and_what_pays_at_once() -> None:
    header, _, *rows = tables(to_markdown(judged(mlp_on_cuda())))[0]
    calls = {row[1]: row[header.index("break-even (calls) [95 %]")] for row in rows}
    assert calls["inductor"] == "never"
    assert calls["eager"] == "-"
    assert re.fullmatch(r"\d\d,\d{3} \[\d\d,\d{3},\xa0\d\d,\d{3}\]", calls["onnx"])


def test_what_ran_elsewhere_is_marked_and_never_ranked_under_strict() -> None:
    header, _, *rows = tables(to_markdown(judged(strictly_on_cpu())))[0]
    eager, onnx, openvino, _ = (dict(zip(header, row, strict=True)) for row in rows)
    assert (eager["rank"], eager["placement"]) == ("1", "full")
    assert onnx["placement"] == r"**partial**: aten.gelu, sort\|x and 1 more; TensorRT\|v10 97 %, torch 3.4 %"
    assert onnx["status"].startswith("fallback: placement is partial, and --strict asks for full: ")
    assert (openvino["rank"], openvino["placement"]) == ("-", "-")
    assert onnx["median latency (ms) [95 %]"].startswith("0.9")
    partly = tables(to_markdown(judged(mlp_on_cuda())))[0]
    torch_tensorrt = next(row for row in partly if row[1] == "torch-tensorrt")
    assert torch_tensorrt[partly[0].index("placement")] == "**partial**: gelu, sort"


def test_each_process_of_each_cell_is_folded_below_its_table_where_there_are_several() -> None:
    measured = ok(cell("eager"), over_processes(1.0, (1.0, 1.1, 0.95)))
    markdown = to_markdown(judged([measured, failed(cell("onnx"), Status.ERROR, "no")]))
    fold = markdown.split("<details><summary>Each process of each cell</summary>")[1].split("</details>")[0]
    ((_, _, row),) = tables(fold)
    assert row[:3] == ["eager", "3", "16"]
    assert len(row[3].split(", ")) == 3
    single = ok(cell("eager"), bursts_of(1.0))
    assert "Each process" not in to_markdown(judged([single]))


def test_where_each_row_ran_is_folded_below_its_table() -> None:
    markdown = to_markdown(judged(strictly_on_cpu()))
    fold = markdown.split("<details><summary>Where it ran, and in what precision</summary>")[1].split("</details>")[0]
    assert fold.strip().splitlines() == [
        "- **eager**: full",
        "  - engines: eager 12",
        r'  - precision in force: cudnn\_allow\_tf32 false; layers {"i8": 3, "f32": 1}; note \*as\* asked',
        "- **onnx**: partial",
        r"  - engines: TensorRT\|v10 10; torch 3",
        r"  - time: TensorRT\|v10 97 %; torch 3.4 %",
        r"  - elsewhere: aten.gelu; sort\|x; topk",
        "  - read from: a profile of one call; &lt;b&gt;its&lt;/b&gt; log",
    ]
    assert "Where it ran" not in to_markdown(judged([failed(cell("onnx"), Status.ERROR, "no")]))


def test_the_share_of_the_floor_stands_beside_what_the_floor_is_made_of() -> None:
    markdown = to_markdown(judged(strictly_on_cpu()))
    header, _, *rows = tables(markdown)[0]
    assert [row[header.index("of floor (%)")] for row in rows] == ["8.9", "151", "19", "-"]
    assert [row[header.index("achieved")] for row in rows] == ["3.98 GB/s", "7.49 GB/s", "8.45 GB/s", "-"]
    floor = "Floor: 0.151 ms, bound by memory (872 MFLOP at 19.9 TFLOP/s, 6.84 MB at 45.2 GB/s)."
    assert markdown.index("## conv") < markdown.index(floor) < markdown.index("| rank |")
    assert "over 100 %" in markdown
    without = to_markdown(judged(conv_on_cpu()))
    assert "loor" not in without


def test_what_tensor_cores_do_nominally_stands_below_the_floor_of_a_product() -> None:
    markdown = to_markdown(judged(product_on_cuda()))
    nominal = "Tensor cores: 1.07 PFLOP/s nominally, at the highest clock of 1.98 GHz; a large product reaches 68 % of"
    assert markdown.index("Floor: 1.50 ms") < markdown.index(nominal) < markdown.index("| rank |")
    assert "ensor cores" not in to_markdown(judged(product_on_cuda(bound="memory")))
    assert "ensor cores" not in to_markdown(judged(product_on_cuda(clock_mhz=None)))


def test_markup_from_outside_breaks_no_table_and_makes_no_html() -> None:
    markdown = to_markdown(judged(hostile_on_cpu()))
    for table in tables(markdown):
        assert len({len(row) for row in table}) == 1
    outside_fences = re.sub(r"^(`{3,})\w*\n.*?^\1$", "", markdown, flags=re.S | re.M)
    tags = set(re.findall(r"<[^>]*>", outside_fences))
    assert tags == {"<details>", "</details>", "<summary>", "</summary>"}
    assert outside_fences.count("<details>") == outside_fences.count("</details>")
    assert "\x1b" not in markdown
    assert "\n# heading" not in outside_fences


def test_the_fence_of_a_log_is_longer_than_any_in_it() -> None:
    markdown = to_markdown(judged(hostile_on_cpu()))
    assert re.search(r"^````text\n.*</details> ``` \{x\}.*\n````$", markdown, flags=re.S | re.M)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b", r"a\|b"),
        ("a\r\nb\tc", "a b c"),
        ("`x` *y* _z_", r"\`x\` \*y\* \_z\_"),
        ("<b>&amp;", "&lt;b&gt;&amp;amp;"),
        ("[t](u) ~~s~~", r"\[t\](u) \~\~s\~\~"),
        ("back\\|slash", r"back\\\|slash"),
        ("$x$", "&#36;x&#36;"),
        ("- item", r"\- item"),
        ("# head", r"\# head"),
        ("1. one", r"1\. one"),
        ("1.5x", "1.5x"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07x\x00y\u202e", "red xy"),
    ],
)
def test_escape(text: str, escaped: str) -> None:
    assert escape(text) == escaped


def test_a_long_reason_is_cut_in_the_table_and_whole_below() -> None:
    reason = "word " * 100 + "the end"
    markdown = to_markdown(judged([ok(cell(), bursts_of(1.0)), failed(cell("onnx"), Status.ERROR, reason)]))
    status = tables(markdown)[0][3][-1]
    assert status.endswith("…") and len(status) < 200
    assert reason in markdown[markdown.index("## What failed") :]
    assert "## What failed" not in to_markdown(judged([failed(cell("onnx"), Status.UNAVAILABLE, "no library")]))


def test_only_pictures_that_exist_are_embedded() -> None:
    assert "## Figures" not in to_markdown(judged())
    markdown = to_markdown(judged(), figures=["/tmp/run/figures/latency.png", "latency.svg", "samples-2.png"])
    assert re.findall(r"\]\((.*?\.\w+)\)$", markdown, flags=re.M) == ["figures/latency.png", "figures/samples-2.png"]
    assert "single calls (2)]" in markdown


def test_many_doubts_fold_away() -> None:
    doubts = [f"doubt number {number}" for number in range(DOUBTS_SHOWN + 3)]
    head = to_markdown(judged([ok(cell(), bursts_of(1.0), doubts=doubts)])).split("\n## conv")[0]
    shown, folded = head.split("<details><summary>3 more</summary>")
    assert shown.count("- eager: doubt number") == DOUBTS_SHOWN
    assert folded.count("- eager: doubt number") == 3


def test_commands_notes_and_the_incomplete() -> None:
    markdown = to_markdown(judged(complete=False, planned=40))
    assert "**Incomplete: 18 of 40 cells have ended.**" in markdown
    assert "python runner.py --model conv --backends inductor/max-autotune" in markdown
    assert "- children were forked from a server" in markdown
    assert "| host | bench\\|1 |" in markdown
    assert "governor" not in markdown  # unreadable, so not guessed


def test_a_report_without_records() -> None:
    assert "No cell has ended yet." in to_markdown(judged([]))


def test_the_markup_of_the_samples_is_hostile() -> None:
    assert all(part in HOSTILE for part in ("|", "<b>", "```", "\x1b", "\n#", "</details>", "[bold]"))
