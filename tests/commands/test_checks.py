"""`--check-only`: statuses without times, a first line that does not hide what is wrong, and the exit status."""

import json
from pathlib import Path

import pytest

from bakeoff.commands import checks
from bakeoff.commands.checks import Check, ChecksAnswer, finding_of
from bakeoff.commands.run import with_files
from bakeoff.planning.request import Request
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Status
from bakeoff.reports.blocks import Items, Section
from bakeoff.reports.tables import Table
from tests.conftest import CommandLine

PROBLEM = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x @ torch.ones(width, width)
width = 4
def get_inputs():
    return [torch.rand(2, width)]
def get_init_inputs():
    return []
"""


def test_builds_are_compared_and_none_is_timed(command_line: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "problems").mkdir()
    (tmp_path / "problems" / "1_product.py").write_text(PROBLEM)
    (tmp_path / "problems" / "2_fails.py").write_text(PROBLEM.replace("[torch.rand(2, width)]", "1 / 0"))
    (tmp_path / "problems" / "utils.py").write_text("")
    asked = ("--model", "problems/*.py", "--backends", "eager,null/wrong,tensorrt", "--devices", "cpu", "--check-only")
    status, out, err = command_line(*asked, "--json", "--out", "checked")
    answer = json.loads(out)
    assert status == 1 and answer["complete"]
    assert answer["exit_reason"] == (
        "4 cells failed: null/wrong (incorrect), eager (error), null/wrong (error) and tensorrt (error); "
        "tensorrt, which you named, is unavailable"
    )
    assert err.splitlines()[-1] == f"exit status 1: {answer['exit_reason']}"
    assert answer["finding"] == (
        "1 of 5 builds is wrong: null/wrong of problems/1_product.py (width 4) on cpu, fp32; 3 of 5 builds failed: "
        "all of problems/2_fails.py (width 4) on cpu, fp32"
    )
    statuses = {(check["model"], check["label"]): check["status"] for check in answer["checks"]}
    assert statuses == {
        ("problems/1_product.py", "eager"): "ok",
        ("problems/1_product.py", "null/wrong"): "incorrect",
        ("problems/1_product.py", "tensorrt"): "unavailable",
        ("problems/2_fails.py", "eager"): "error",
        ("problems/2_fails.py", "null/wrong"): "error",
        ("problems/2_fails.py", "tensorrt"): "error",
    }
    eager, wrong = answer["checks"][1:3] if answer["checks"][0]["label"] == "tensorrt" else answer["checks"][:2]
    assert eager["relative_error"] < 1e-6 < wrong["relative_error"] and wrong["reason"]
    failed = [check for check in answer["checks"] if check["status"] == "error"]
    assert all(".log" not in check["reason"] and "ZeroDivisionError" in check["log_tail"] for check in failed)
    assert [reason.partition(" ")[0] for reason in answer["left_out"]] == ["problems/utils.py"]
    assert json.loads((tmp_path / "checked" / "checks.json").read_text())["finding"] == answer["finding"]
    assert "latency" not in out and "ok eager of problems/1_product.py" in err
    for asked in (["blame", "checked", "null/wrong"], ["explain", "checked"], ["export", "checked"]):
        status, _, err = command_line(*asked)
        assert status == 2 and len(err.splitlines()) == 1
        assert {"checked", "--check-only"} <= set(err.replace(",", "").split())

    status, out, _ = command_line("--model", "mlp", "--backends", "null", "--devices", "cpu", "--check-only", "--quiet")
    assert status == 0 and out.splitlines()[0] == "the only build is right"
    assert "The model" not in out


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return x + torch.rand_like(x)", "The model is random: two calls with the same inputs differ."),
        ("return torch.ones(2, width)", "The model gives one answer"),
    ],
)
def test_what_a_model_does_beside_its_outputs_is_told(
    command_line: CommandLine, tmp_path: Path, body: str, sentence: str
) -> None:
    (tmp_path / "net.py").write_text(PROBLEM.replace("return x @ torch.ones(width, width)", body))
    asked = ("--model", "net.py", "--backends", "eager", "--devices", "cpu", "--check-only", "--quiet")
    _, out, _ = command_line(*asked, "--out", "checked")
    assert sentence in out.replace("\n", " ")
    assert json.loads((tmp_path / "checked" / "checks.json").read_text())["about_models"][0].startswith(sentence)


def test_a_size_is_that_of_the_files_that_have_it(tmp_path: Path) -> None:
    (tmp_path / "1.py").write_text(PROBLEM)
    (tmp_path / "2.py").write_text(PROBLEM.replace("width = 4", "width = height = 3\nheight = 4"))
    asked = Request(models=("mlp", f"{tmp_path}/*.py"), set={"width": ("5", "6"), "batch": ("2",)})
    request, _ = with_files(asked)
    assert [(part.models, part.set) for part in request.parts()] == [
        (("mlp",), {"batch": ("2",)}),
        ((f"{tmp_path}/1.py",), {"width": ("5", "6")}),
        ((f"{tmp_path}/2.py",), {}),
    ]
    assert with_files(request) == (request, [])
    with pytest.raises(UsageError, match="unknown dimension 'depth': did you mean 'width'"):
        with_files(asked.model_copy(update={"set": {"depth": ("2",)}}))


def check(label: str, status: Status, **more: str) -> Check:
    return Check(model="net", contest="net on cpu, fp32", label=label, status=status, **more)


@pytest.mark.parametrize(
    ("ended", "finding"),
    [
        ([], "nothing could be built here"),
        ([check("a", Status.UNAVAILABLE)], "nothing could be built here"),
        ([check("a", Status.OK), check("b", Status.OK), check("c", Status.UNSUPPORTED)], "all 2 builds are right"),
        ([check("a", Status.OK), check("b", Status.CRASH)], "1 of 2 builds failed: b of net on cpu, fp32"),
        (
            [check("a", Status.OK, unchecked="random"), check("b", Status.INCORRECT)],
            "1 of 2 builds is wrong: b of net on cpu, fp32; outputs of 1 could not be compared in full: a of net on "
            "cpu, fp32",
        ),
    ],
)
def test_the_finding_names_what_is_not_right(ended: list[Check], finding: str) -> None:
    assert finding_of(ended) == finding


def test_a_reason_of_many_builds_stands_once_below_the_table() -> None:
    absent = [check(label, Status.UNAVAILABLE, reason="no GPU") for label in "abc"]
    made = [check("eager", Status.OK), *absent, check("onnx", Status.CRASH, reason="signal 11")]
    answer = ChecksAnswer(finding="", complete=True, checks=made, left_out=[], exit_reason="", about_models=[])
    (section,) = [block for block in checks.blocks_of(answer) if isinstance(block, Section)]
    table, reasons = section.blocks
    assert isinstance(table, Table) and [row[0] for row in table.rows] == ["eager", "onnx"]
    assert isinstance(reasons, Items)
    assert list(reasons.texts) == ["a, b, c unavailable: no GPU", "onnx crash: signal 11"]


def test_an_interruption_keeps_what_was_checked() -> None:
    def interrupt(_: Check) -> None:
        raise KeyboardInterrupt

    answer, status = checks.check(Request(models=("mlp",), backends=("tensorrt", "null"), devices=("cpu",)), interrupt)
    assert (len(answer.checks), answer.complete, status) == (1, False, 130)
    assert answer.finding == "interrupted after 1 of 2 builds", "the other one may be built"


def test_a_build_for_a_range_is_one_for_all_its_sizes(command_line: CommandLine) -> None:
    asked = ("--model", "mlp", "--set", "features=8", "--set", "hidden=8", "--dynamic", "batch=1:8", "--devices", "cpu")
    status, out, _ = command_line(*asked, "--backends", "null", "--check-only", "--json")
    checked = [(check["label"], check["status"]) for check in json.loads(out)["checks"]]
    assert status == 0 and checked == [("null", "ok"), ("null[dynamic]", "ok")] * 2


@pytest.mark.parametrize(("field", "value", "flag"), [("load", "offline", "--load"), ("starts", True, "--starts")])
def test_what_asks_for_times_is_refused(field: str, value: object, flag: str) -> None:
    with pytest.raises(UsageError, match=f"--check-only times nothing: leave {flag} out"):
        checks.check(Request(**{field: value}), print)
