"""The command line, from what a user types to the exit status: runs, reports and the doctor."""

import csv
import errno
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from bakeoff import backends, cli
from bakeoff.backends.traps import Facts
from bakeoff.commands import run as runs
from bakeoff.doctor.diagnosis import BackendTrial, Diagnosis, Outcome
from bakeoff.judging.constraints import QUANTITIES, STARTED_QUANTITIES
from bakeoff.judging.judgement import judge
from bakeoff.measuring.variables import with_variables
from bakeoff.planning.load_plan import LoadPlan, Traffic
from bakeoff.planning.request import Request
from bakeoff.planning.time_plan import end_of_budget
from bakeoff.records import report_file
from bakeoff.records.doubts import Accepted
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Burst, Record, Report, Status
from bakeoff.records.store import Store
from bakeoff.records.text import again
from bakeoff.reports import writer
from tests.conftest import CommandLine
from tests.reports.samples import bursts, cell, conv_on_cpu, failed, ok, report
from tests.support.checkout import ROOT

TINY = (
    *("--model", "mlp", "--set", "features=8", "--set", "hidden=8"),
    *("--devices", "cpu", "--min-time", "0.02", "--processes", "1"),
)


def statuses(report: Report) -> dict[str, str]:
    return {record.cell.label: record.status.value for record in report.records}


def complaint(answer: tuple[int, str, str]) -> str:
    """The one line of an answer that refuses the request."""
    status, out, err = answer
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    return line


# --- what is refused, before anything is measured


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "cnv"], "unknown model 'cnv': did you mean 'conv'?"),
        (["--model", "mine.py"], "no file mine.py in /"),
        (["--model", "/nowhere/mine.py"], "no file /nowhere/mine.py: write path/to/file.py:FUNCTION"),
        (["--model", "mine.py:factory"], "mine.py"),
        (["--backends", "onx"], "unknown backend 'onx': did you mean 'onnx'?"),
        (["--task", "training"], "--task takes inference, forward_backward, train_step"),
        (["--model", "[red]mlp[/red]"], "unknown model '[red]mlp[/red]'"),
        (["--model", "zoo.py:factory:"], "unknown model 'zoo.py:factory:'"),
        (["--preset", "attention"], "unknown preset 'attention'"),
        (["--set", "batch"], "write --set KEY=VALUE"),
        (["--set", "=1"], "write --set KEY=VALUE"),
        (["--set", "batch=1,"], "--set batch= has no value"),
        (["--preset", "attention_sweep"], "unknown preset 'attention_sweep': did you mean 'attention-sweep'"),
        (["--preset", "digits"], "--preset digits: it is an example now: --config examples/digits.toml"),
        (["--model", "mlp", "--task", "generate"], "mlp generates no text"),
        (["--model", "mlp", "--cold-cache", "--load", "server", "--slo", "p99_ms<5"], "--cold-cache"),
        (["--check-only", "--load", "offline"], "--check-only times nothing: leave --load out"),
        (["--check-only", "--starts"], "--check-only times nothing: leave --starts out"),
        (["--seed", "-1"], "--seed -1: it must be greater than or equal to 0"),
        (["--seed", "x"], "'--seed': it must be a valid integer (bakeoff run --help)"),
        (["--soak", "x"], "--soak x: write a number of seconds"),
        (["--time-limit", "0"], "--time-limit 0.0: "),
        (["--min-time", "nan"], "--min-time nan: it must be a finite number"),
        (["--schedule", "random"], "--schedule random: it must be 'interleaved' or 'sequential'"),
        (["--start-method", "fork"], "--start-method fork: "),
        (["--calls", "0"], "--calls 0: "),
        (["--budget", "soon"], "--budget soon: write seconds, minutes or hours"),
        (["--budget", "0s"], "--budget 0s: write seconds"),
        (["--require", "p9_ms<5"], "unknown quantity 'p9_ms': did you mean 'p99_ms'?"),
        (["--require", "p99_ms"], "--require 'p99_ms': write NAME<NUMBER"),
        (["--require", "top1<5ms"], "top1 takes a plain number, or a change such as -1%"),
        (["--config", "nowhere.toml"], "--config nowhere.toml: No such file"),
        (["--modle", "mlp"], "--model"),
        (["--model"], "requires an argument"),
        (["mesure"], "mesure"),
        (["mine.py"], "'mine.py' is a model, not a command: write bakeoff --model mine.py:factory"),
        (["zoo.py:llama:"], "'zoo.py:llama:' is a model"),
        (["run", "mine.py"], "'mine.py' is a model: write bakeoff --model mine.py:factory"),
        (["run", "again"], "again"),
        (["resume"], "folder"),
        (["export"], "(bakeoff export --help)"),
        (["resume", "nowhere"], "nowhere holds no run"),
        (["resume", "."], "holds no run"),
        (["report"], "paths"),
        (["report", "nowhere"], "no report at nowhere"),
        (["report", "nowhere.json"], "no report at nowhere.json"),
        (["list", "--devices"], "requires an argument"),
        (["list", "--devices", "gpu"], "unknown device 'gpu': write cpu, cuda or cuda:N"),
        (["doctor", "--backends", "onx"], "unknown backend 'onx': did you mean 'onnx'? (bakeoff list)"),
    ],
    ids=" ".join,
)
def test_bad_input_is_refused_in_one_line(command_line: CommandLine, arguments: list[str], said: str) -> None:
    assert said in complaint(command_line(*arguments))
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("folder", "plan", "said"),
    [
        ("pipeline", "{}", "pipeline compares parts of a pipeline that lived in one process: start that anew"),
        ("pipeline/parts", "{}", "pipeline/parts was begun by another version of Bakeoff"),
        ("pipeline/parts", '{"request": {"colour": "red"}}', "pipeline/parts was begun by another version of Bakeoff"),
        ("pipeline/parts", "{", "pipeline/parts holds no run that can be read: name the folder that --out named"),
    ],
)
def test_what_cannot_be_resumed_is_said_without_files_of_ours(
    command_line: CommandLine, folder: str, plan: str, said: str
) -> None:
    Path("pipeline/parts").mkdir(parents=True)
    Path("pipeline/parts/plan.json").write_text(plan)
    refused = complaint(command_line("resume", folder))
    assert said in refused and "plan.json" not in refused


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("backend = 'eager'", "unknown key 'backend': did you mean 'backends'? (in run.toml)"),
        ("seed = 'x'", "--seed x: "),
        ("seed =", "not TOML"),
        ('model = """two\nlines"""', "unknown model 'two lines'"),
    ],
)
def test_a_wrong_config_is_refused_in_one_line(command_line: CommandLine, text: str, said: str) -> None:
    Path("run.toml").write_text(text)
    assert said in complaint(command_line("--config", "run.toml"))


def test_a_gpu_that_is_not_there_is_refused_before_a_folder_is_made(command_line: CommandLine) -> None:
    Path("run.toml").write_text("devices = ['cpu', 'cuda:99']\nprocesses = 1")
    assert "--devices cuda:99: torch " in complaint(command_line("--config", "run.toml", "--model", "mlp"))
    assert [path.name for path in Path().iterdir()] == ["run.toml"]


@pytest.mark.parametrize("out", ["file", "file/below", "full"])
def test_a_folder_that_cannot_be_written_is_found_before_a_process_is_started(
    command_line: CommandLine, out: str
) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
    Path("file").write_text("")
    Path("full").mkdir()
    Path("full", "precious").write_text("")
    assert f"--out {out}: " in complaint(command_line(*TINY, "--backends", "null", "--out", out))
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt == before


def test_help_is_no_error_and_shows_how_to_run(command_line: CommandLine) -> None:
    status, out, err = command_line("--help")
    assert (status, err) == (0, "")
    assert all(command in out for command in ("run", "resume", "report", "list"))
    assert "Usage: bakeoff [OPTIONS]" in out
    assert "bakeoff --model FILE.py:FACTORY" in out


@pytest.mark.parametrize(("command", "quantities"), [("run", QUANTITIES), ("start", STARTED_QUANTITIES)])
def test_the_help_names_what_can_be_required(
    command_line: CommandLine, command: str, quantities: Mapping[str, object]
) -> None:
    status, out, _ = command_line(command, "--help")
    assert status == 0 and quantities.keys() <= set(re.findall(r"\w+", out))


def test_the_help_of_soak_names_the_length_that_is_used(command_line: CommandLine) -> None:
    _, out, _ = command_line("run", "--help")
    (told,) = re.findall(r"--soak .*?\[(\d+), of the two best", " ".join(out.split()))
    plan = LoadPlan.of(Traffic.parse("offline"), None, None, min_time_s=1.5)
    assert plan is not None and plan.soak_s == float(told)


def test_the_version_is_printed(command_line: CommandLine) -> None:
    status, out, err = command_line("--version")
    assert (status, err) == (0, "")
    assert out.startswith("bakeoff 0.") and ", torch 2." in out and len(out.splitlines()) == 1


def test_a_file_with_one_function_is_taken_for_a_model_by_that_function(command_line: CommandLine) -> None:
    Path("mine.py").write_text("def build(batch: int = 8): ...\n")
    assert "is a model, not a command: write bakeoff --model mine.py:build" in complaint(command_line("mine.py"))
    assert "names a file but no factory: write --model mine.py:build" in complaint(command_line("--model", "mine.py"))


def test_a_function_that_returns_a_list_is_no_factory(command_line: CommandLine) -> None:
    """One of the three that files of KernelBench have is missing."""
    Path("mine.py").write_text("class Model: ...\n\ndef get_inputs():\n    return [torch.rand(8)]\n")
    assert "write bakeoff --model mine.py:factory" in complaint(command_line("mine.py"))
    lacking = complaint(command_line("--model", "mine.py:factory"))
    assert "no function factory in mine.py. A factory is a function that returns the model and the inputs" in lacking


# --- what a run leaves behind, and its exit status


def test_a_run_leaves_its_report_and_rendering_it_again_changes_nothing(command_line: CommandLine) -> None:
    status, out, err = command_line(*TINY, "--backends", "eager,null/double", "--out", "run")
    assert (status, err) == (0, "")
    assert "Report: run/report.md" in out.splitlines()
    names = {str(path.relative_to("run")) for path in Path("run").rglob("*") if path.is_file()}
    assert {"report.json", "report.md", "report.html", "cells.csv"} <= names
    assert "figures/latency.svg" in names
    ids = [f"mlp_batch4_features8_hidden8_inference_cpu_fp32_{name}" for name in ("eager.default", "null.double")]
    assert {f"cells/{name}.json" for name in ids} <= names
    assert {f"logs/{name}.log" for name in ids} <= names

    report = report_file.read(Path("run"))
    assert report.complete and report.planned == 2
    assert [record.cell.id for record in report.records] == ids
    assert all(record.latency and record.latency.calls >= 34 for record in report.records)
    command = " ".join(["bakeoff", *TINY, "--backends", "eager,null/double", "--out", "run"])
    # libraries that other tests import set variables, too, such as KMP_DUPLICATE_LIB_OK
    assert report.command == with_variables(command, os.environ) and "OMP_NUM_THREADS=1 " in report.command
    winner = report.verdicts[0].winner
    # tests beside it may keep the cores so busy that nothing is decided
    assert winner in ("eager", None) and ("eager wins at" in out) is (winner == "eager")
    with open("run/cells.csv", encoding="utf-8") as file:
        assert [row["backend"] for row in csv.DictReader(file)] == ["eager", "null"]

    before = {name: Path("run", name).read_bytes() for name in names}
    status, again, err = command_line("report", "run")
    assert (status, err) == (0, "")
    assert out.endswith(again)
    assert {str(path.relative_to("run")) for path in Path("run").rglob("*") if path.is_file()} == names
    assert [name for name in names if Path("run", name).read_bytes() != before[name]] == []


def test_a_budget_counts_from_the_start_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ends_s: list[float] = []

    def without_measuring(request: Request) -> None:
        raise UsageError("scripted")

    def noted(begun_s: float, budget_s: float | None) -> float:
        ends_s.append(end_of_budget(begun_s, budget_s))
        return ends_s[-1]

    monkeypatch.setattr(runs, "with_files", without_measuring)
    monkeypatch.setattr(runs, "end_of_budget", noted)
    assert cli.main(["--model", "mlp", "--devices", "cpu", "--budget", "60s"], begun_s=100.0) == 2
    assert ends_s == [154.0]


@pytest.mark.parametrize("words", [["run", "--model", "mlp", "--devices", "cpu"], ["resume", "folder"]])
def test_the_times_that_are_shown_count_from_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    def shown(*given: object) -> None:
        raise UsageError(f"begun at {given[-1]}")

    monkeypatch.setattr(runs, "progress_of", shown)
    monkeypatch.setattr(runs, "request_of", lambda store: None)
    monkeypatch.setattr(Store, "open", lambda folder: None)
    assert cli.main(words, begun_s=100.0) == 2
    assert "begun at 100.0" in capsys.readouterr().err


def test_what_a_budget_did_not_reach_is_reported_and_resume_measures_it(command_line: CommandLine) -> None:
    asked = (*TINY, "--backends", "eager,null/double", "--out", "run", "--json")
    status, out, err = command_line(*asked, "--budget", "0.1s")
    answer = json.loads(out)
    assert status == 3 and answer["complete"]
    (contest,) = answer["contests"]
    assert (contest["outcome"], contest["winner"]) == ("nothing ranked", None)
    assert set(contest["without_numbers"]) == {"eager", "null/double"}
    for reason in contest["without_numbers"].values():
        assert re.fullmatch(r"not reached: --budget left no time; about \d+ s more would do for .*", reason)
    assert "--budget 0.1s: no time was left for eager and null/double" in err
    assert len(err.splitlines()) < 60

    status, out, err = command_line("resume", "run", "--json")
    answer = json.loads(out)
    assert status == 0
    assert all(Path(path).exists() for path in answer["paths"].values())
    (contest,) = answer["contests"]
    assert (contest["winner"] or contest["candidates"][0]) == "eager", "it leads, decided or not on a busy machine"
    assert contest["without_numbers"] == {}
    progress = [line for line in err.splitlines() if line.startswith("[0:")]
    assert sum(" is ready after " in line for line in progress) == 2
    assert "fp32: " in progress[-1] and "eager" in progress[-1]


def test_a_dry_run_measures_nothing(command_line: CommandLine) -> None:
    status, out, err = command_line(*TINY, "--backends", "null,tensorrt", "--dry-run")
    assert (status, err) == (0, "")
    contest, lacking, total = out.splitlines()
    assert contest.startswith("mlp (batch 4, features 8, hidden 8) on cpu, fp32: null (about ")
    assert lacking == "cannot run: tensorrt (TensorRT runs on NVIDIA GPUs, and cpu is none)"
    assert total.startswith("1 contest, 1 cell: about ")
    assert list(Path().iterdir()) == []


def test_what_is_incorrect_names_blame_and_is_accepted_where_that_was_asked(
    command_line: CommandLine,
) -> None:
    asked = (*TINY, "--backends", "eager,null/wrong")
    status, out, _ = command_line(*asked, "--out", "run")
    assert status == 1 and statuses(report_file.read(Path("run")))["null/wrong"] == "incorrect"
    lines = out.splitlines()
    assert "  bakeoff blame run null/wrong" in lines
    assert not any("--accept" in line for line in lines), "an error of the build's is no rounding"
    before = report_file.read(Path("run")).records
    assert command_line("report", "run", "--accept", "rmse<5", "--keep")[0] == 0
    assert statuses(report_file.read(Path("run")))["null/wrong"] == "ok"
    assert command_line("report", "run", "--accept", "", "--keep")[0] == 0
    assert report_file.read(Path("run")).records == before

    assert command_line(*asked, "--processes", "2", "--accept", "rmse<5", "--out", "again")[0] == 0
    record = next(each for each in report_file.read(Path("again")).records if each.cell.mode == "wrong")
    assert record.status is Status.OK and len(record.processes) == 2
    assert [(doubt.kind, doubt.required) for doubt in record.doubts if isinstance(doubt, Accepted)] == [
        ("accepted by limit", "rmse<5")
    ]
    assert "--accept 'rmse<5'" in record.command and "rmse<5" in out_of("again")


def out_of(run: str) -> str:
    """Return the pages of a run, one after the other."""
    return "".join(Path(run, name).read_text() for name in ("report.md", "details.md", "report.html"))


@pytest.mark.parametrize(
    "status", [Status.INCORRECT, Status.FALLBACK, Status.CRASH, Status.ERROR, Status.OOM, Status.TIMEOUT]
)
def test_one_failed_cell_is_enough_for_exit_status_1(status: Status) -> None:
    some = judge(report([ok(cell(), bursts(1.0)), failed(cell("null"), status, "scripted")]))
    assert runs.ending_of(some) == (1, f"1 cell failed: null ({status})")
    none = judge(report([failed(cell("null"), status, "scripted")]))
    assert runs.ending_of(none) == (3, "nothing was measured")


def test_failed_cells_of_several_models_are_named_with_them_and_it_is_said_where_all_are() -> None:
    ended = [failed(cell("onnx", model=model), Status.ERROR, "scripted") for model in "abcdef"]
    assert runs.failures_of(ended) == [
        "6 cells failed: onnx of a (error), onnx of b (error), onnx of c (error) and 3 others, which the tables name"
    ]
    assert runs.failures_of(ended[:2]) == ["2 cells failed: onnx of a (error) and onnx of b (error)"]


@pytest.mark.parametrize(("ending", "status"), [(Status.NOT_REACHED, 0), (Status.TIMEOUT, 1)])
def test_what_the_budget_did_not_reach_is_no_failure(ending: Status, status: int) -> None:
    ended = failed(cell("null"), ending, "not done")
    assert runs.ending_of(judge(report([ok(cell(), bursts(1.0)), ended])))[0] == status
    assert runs.ending_of(judge(report([ended])))[0] == 3, "nothing was measured"


def test_requirements_and_calls_are_kept_and_judge_the_run(command_line: CommandLine) -> None:
    asked = (*TINY, "--backends", "eager,null", "--calls", "50", "--require", "peak_device_bytes<1GB")
    status, out, err = command_line(*asked, "--processes", "2", "--out", "run")  # the second one starts warm
    assert status == 1 and err.splitlines()[-1] == "exit status 1: no cell of a contest meets --require"
    report = report_file.read(Path("run"))
    assert (report.request["calls"], report.request["require"]) == (50, "peak_device_bytes<1GB")
    assert report.verdicts[0].standings == []
    assert "- eager may not win: peak_device_bytes cannot be judged: no memory of a device was read" in " ".join(
        out.split()
    )
    status, out, _ = command_line("report", "run", "--require", "build_s<60")
    unmet, _, said = command_line("report", "run", "--require", "p99_ms<1e-9")
    assert unmet == 1 and "exit status 1: " in said
    assert "s for 50 calls" in out and status == 0
    for start in ("cold", "warm"):  # which of them it is depends on how long a start took here
        assert re.search(f"= From a {start} start (eager|null) costs least", " ".join(out.split()))


def test_a_backend_that_all_stands_for_may_be_missing() -> None:
    absent = failed(cell("tensorrt"), Status.UNAVAILABLE, "no GPU")
    assert not absent.asked_by_name
    named = absent.model_copy(update={"asked_by_name": True})
    judged = [judge(report([ok(cell(), bursts(1.0)), each])) for each in (absent, named)]
    assert [runs.ending_of(each) for each in judged] == [
        (0, ""),
        (1, "tensorrt, which you named, is unavailable"),
    ]


def test_of_several_precisions_a_named_backend_needs_to_support_one() -> None:
    in_bf16, other_mode = cell("onnx", precision=Precision.BF16), cell("onnx", mode="cuda-graph")
    missing = [failed(each, Status.UNSUPPORTED, "no kernels", asked_by_name=True) for each in (in_bf16, other_mode)]
    measured = ok(cell("onnx"), bursts(1.0))
    assert [runs.ending_of(judge(report([measured, each])))[0] for each in missing] == [0, 1]
    assert runs.ending_of(judge(report([ok(cell(), bursts(1.0)), missing[0]])))[0] == 1


def test_a_config_is_a_command_line_and_what_is_typed_goes_over_it(command_line: CommandLine) -> None:
    Path("run.toml").write_text(
        "model = 'mlp'\nbackends = ['null', 'null/slow']\ndevices = 'cpu'\nmin-time = 0.02\n"
        "processes = 1\nout = 'run'\nquiet = true\n"
        "[set]\nfeatures = 8\nhidden = 4\n"
    )
    status, out, _ = command_line("--config", "run.toml", "--backends", "null/again", "--set", "hidden=8")
    *before, answer = out.splitlines()
    assert status == 0 and answer.startswith("mlp  → null/again  ")
    assert {"Report: run/report.md", "Page: run/report.html"} < set(before)
    report = report_file.read(Path("run"))
    assert again(report.command)[0].endswith(" --out run-again")
    (record,) = report.records
    assert (record.cell.label, record.cell.dimensions["hidden"], record.cell.dimensions["features"]) == (
        "null/again",
        8,
        8,
    )


def test_list_asks_the_backends_about_a_device_that_is_named(
    command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "names", lambda: ["eager", "tensorrt"])
    status, out, _ = command_line("list", "--devices", "cpu")
    assert status == 0
    assert "cpu: yes" in out and "cpu: no: TensorRT runs on NVIDIA GPUs" in out


# --- what an interruption leaves behind

BLOCKING = '''
import subprocess, sys, time
from pathlib import Path

import torch

HERE = Path(__file__).parent


def factory(batch: int = 1):
    """Blocks in the second epoch of the second contest, as long as a file says so."""
    if (HERE / "block").exists() and list(HERE.glob("run/unfinished/*batch2*")):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", str(HERE)], start_new_session=True)
        (HERE / "blocked").touch()
        time.sleep(3600)
    return torch.nn.Linear(4, 4), torch.randn(batch, 4)
'''


@pytest.fixture
def blocking(tmp_path: Path) -> tuple[str, ...]:
    """The arguments of a run of two contests in `run`, which is stuck in the second process of the third cell, with a
    grandchild."""
    (tmp_path / "mine.py").write_text(BLOCKING)
    (tmp_path / "block").touch()
    measured = ("--model", "mine.py:factory", "--set", "batch=1,2", "--backends", "null,null/again", "--out", "run")
    return (*measured, "--devices", "cpu", "--min-time", "0.02", "--processes", "2")


@pytest.fixture
def blocked(tmp_path: Path, blocking: tuple[str, ...]) -> Iterator[subprocess.Popen[str]]:
    """Such a run in a process of its own, whose temporary folder is in `temp`."""
    (tmp_path / "temp").mkdir()
    process = subprocess.Popen(
        [sys.executable, ROOT / "runner.py", *blocking],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "temp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until((tmp_path / "blocked").exists, 120)
        assert list((tmp_path / "temp").iterdir()), "its temporary folder is elsewhere"
        assert len(processes_of(tmp_path)) >= 3, "server, cell and grandchild are not found"
        assert len(psutil.Process(process.pid).children()) == 2, "the run has not taken the server that started early"
        yield process
    finally:
        process.kill()
        process.communicate()
        for left in processes_of(tmp_path):
            left.kill()


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def processes_of(folder: Path) -> Sequence[psutil.Process]:
    """Those that a run in `folder` has started: the folder, or its temporary one, is among their arguments, or the
    latter in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            arguments, values = process.cmdline(), process.environ().values()
        except (psutil.Error, OSError):
            continue
        is_of_run = str(folder) in arguments or any(str(folder / "temp") in text for text in (*arguments, *values))
        if process.pid != os.getpid() and is_of_run:
            found.append(process)
    return found


def nothing_is_left_of(folder: Path) -> bool:
    return not processes_of(folder) and not list((folder / "temp").iterdir())


def processes_by_batch(report: Report) -> dict[object, list[int]]:
    """Return the number of processes of each cell, by the batch of its contest."""
    found: dict[object, list[int]] = {}
    for record in report.records:
        found.setdefault(record.cell.dimensions["batch"], []).append(len(record.processes))
    return found


def bursts_of_process(record: Record, number: int) -> list[Burst]:
    return [burst for burst in record.bursts if burst.process == number]


def resumed(command_line: CommandLine, folder: Path) -> None:
    """`resume` measures what is missing, from the last finished epoch on, and repeats nothing."""
    before = report_file.read(folder / "run")
    (folder / "block").unlink()
    assert command_line("resume", "run", "--quiet")[0] == 0
    after = report_file.read(folder / "run")
    assert after.complete and set(statuses(after).values()) == {"ok"}
    assert before.created_at < after.resumed_at and not before.resumed_at
    # floors come last, and the run that was killed did not reach them
    first, again = ([each.model_copy(update={"roofline": None}) for each in run.records[:2]] for run in (before, after))
    assert again == first
    for old, new in zip(before.records[2:], after.records[2:], strict=True):
        assert bursts_of_process(new, 0) == old.bursts
        assert new.processes[0] == old.processes[0]
        assert [process.warm for process in new.processes] == [False, True], "its build was not kept"
        assert min(burst.started_s for burst in bursts_of_process(new, 1)) > old.bursts[-1].started_s
    assert any("interrupted and resumed" in note and "after 1 process of each cell" in note for note in after.notes)
    assert not (folder / "run" / "builds").exists() and not list((folder / "run" / "unfinished").iterdir())


def test_a_run_that_is_interrupted_before_it_measures_says_so_and_that_it_can_be_run_again(
    monkeypatch: pytest.MonkeyPatch, command_line: CommandLine
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "launchers_for", interrupted)
    status, _, err = command_line("--model", "mlp", "--backends", "eager", "--out", "run")
    said = "error: interrupted: nothing was measured yet, and the command can be run again"
    assert (status, err.splitlines()[-1]) == (130, said) and not Path("run").exists()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "this process may not open any more files: raise its limit"),
        (OSError(errno.ENFILE, "Too many open files in system"), "this machine cannot open any more files"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/run/plan.json"),
            "/run/plan.json: No space left on device; make room first; what a run",
        ),
        (OSError("it is gone"), "it is gone;"),
    ],
)
def test_what_the_system_refuses_is_a_sentence(
    error: OSError, said: str, monkeypatch: pytest.MonkeyPatch, command_line: CommandLine, tmp_path: Path
) -> None:
    def refused(*_: object) -> None:
        raise error

    monkeypatch.setattr(runs, "launchers_for", refused)
    status, _, err = command_line("--model", "mlp", "--backends", "eager", "--out", "run")
    assert status == 1 and err.splitlines()[-1].startswith(f"error: {said}")
    kept = "what a run has measured is kept: `bakeoff report {0}` ranks it, and `bakeoff resume {0}` goes on\n"
    assert err.endswith(kept.format("RUN"))
    folder = tmp_path / "of mine"
    (folder / "cells").mkdir(parents=True)
    (folder / "plan.json").touch()
    error.filename = str(folder / "cells" / "a.json")
    _, _, err = command_line("--model", "mlp", "--backends", "eager", "--out", "run")
    assert err.endswith(kept.format(f"'{folder}'"))


def test_an_error_of_a_run_that_has_begun_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, command_line: CommandLine
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise BakeoffError("the fork server was killed")

    monkeypatch.setattr(runs, "measure", killed)
    status, _, err = command_line(*TINY, "--backends", "null", "--out", "run")
    assert status == 1 and "was killed; what a run has measured is kept: `bakeoff report run`" in err


def test_an_interrupted_run_reports_what_it_has_leaves_nothing_running_and_is_resumed(
    blocking: tuple[str, ...], tmp_path: Path, command_line: CommandLine
) -> None:
    """It is asked to terminate, which it takes as it takes Ctrl-C."""

    def terminate() -> None:
        wait_until((tmp_path / "blocked").exists, 120)
        assert processes_of(tmp_path), "the grandchild is not found"
        os.kill(os.getpid(), signal.SIGTERM)

    with ThreadPoolExecutor(1) as beside:
        asked = beside.submit(terminate)
        status, out, err = command_line(*blocking)
    asked.result()
    assert status == 130 and out.count("bakeoff resume run") == 1 and "bakeoff resume" not in err
    assert err.splitlines()[-1] == "Interrupted: the run ends, and keeps its numbers."
    wait_until(lambda: not processes_of(tmp_path), 5)
    report = report_file.read(tmp_path / "run")
    assert not report.complete and report.planned == 4
    assert processes_by_batch(report)[2] == [1, 1]
    assert set(statuses(report).values()) == {"ok"}
    assert (tmp_path / "run" / "report.md").exists()
    with Store.open(tmp_path / "run").measured_here():
        assert "another process measures this run" in complaint(command_line("resume", "run"))
    resumed(command_line, tmp_path)


@pytest.mark.slow
def test_a_program_that_is_terminated_leaves_no_process_and_no_file(
    blocked: subprocess.Popen[str], tmp_path: Path
) -> None:
    blocked.terminate()
    out, err = blocked.communicate(timeout=150)
    assert blocked.returncode == 130 and "Traceback" not in out + err
    assert err.splitlines()[-1] == "Interrupted: the run ends, and keeps its numbers."
    assert nothing_is_left_of(tmp_path)


@pytest.mark.slow
def test_a_killed_run_leaves_nothing_running_and_is_resumed_without_repeating(
    blocked: subprocess.Popen[str], tmp_path: Path, command_line: CommandLine
) -> None:
    blocked.kill()
    blocked.communicate()
    wait_until(lambda: nothing_is_left_of(tmp_path), 5)
    assert not (tmp_path / "run" / "report.json").exists()
    assert command_line("report", "run")[0] == 0
    found = report_file.read(tmp_path / "run")
    assert (found.complete, found.planned, processes_by_batch(found)[2]) == (False, 4, [1, 1])
    resumed(command_line, tmp_path)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a report, without figures."""
    folder = tmp_path_factory.mktemp("written")
    writer.write(report(conv_on_cpu()), folder, figures=False)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may change."""
    return shutil.copytree(written, tmp_path, dirs_exist_ok=True)


@pytest.fixture
def ask(folder: Path, command_line: CommandLine) -> CommandLine:
    """`bakeoff report`, which is asked about that folder."""
    return lambda *arguments: command_line("report", folder, *arguments)


def without_verdicts(folder: Path) -> None:
    """Take the verdicts out of the report on disk, so that new ones can be told from them."""
    report_file.write_json(report_file.read(folder).model_copy(update={"verdicts": []}), folder)


def test_requirements_judge_a_report_anew_and_none_judge_it_as_before(folder: Path, ask: CommandLine) -> None:
    before = report_file.read(folder)
    assert before.verdicts[0].winner == "onnx"
    status, said, _ = ask("--keep", "--require", "median_ms<2, build_s>5")
    after = report_file.read(folder)
    assert status == 0 and after.verdicts[0].winner == "inductor/max-autotune"
    assert after.records == before.records and after.request["require"] == "median_ms<2, build_s>5"
    assert "- onnx may not win: build_s is 0.9, not > 5" in said
    assert ask("--keep", "--require", "")[0] == 0
    assert report_file.read(folder).verdicts == before.verdicts


def test_a_folder_that_cannot_be_written_does_not_take_the_answer(
    ask: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "replace", refuse)
    status, out, err = ask()
    assert status == 1 and out.splitlines()[-1].startswith("conv  → onnx") and "Read-only file system" in err


def test_a_terminal_that_is_not_in_utf8_loses_no_answer(folder: Path) -> None:
    asked = [sys.executable, ROOT / "runner.py", "report", str(folder)]
    in_ascii = {**os.environ, "PYTHONIOENCODING": "ascii"}
    told = subprocess.run(asked, env=in_ascii, capture_output=True, text=True, check=True)
    assert told.stdout.splitlines()[-1].startswith("conv  ? onnx") and told.stderr == ""


def test_a_home_that_cannot_be_written_is_no_remark_after_the_answer(folder: Path) -> None:
    homeless = {
        "HOME": "/proc/none",
        "MPLCONFIGDIR": "",
        "XDG_CONFIG_HOME": "/proc/none",
        "XDG_CACHE_HOME": "/proc/none",
    }
    asked = [sys.executable, ROOT / "runner.py", "report", str(folder)]
    told = subprocess.run(asked, env={**os.environ, **homeless}, capture_output=True, text=True, check=True)
    assert told.stderr == "" and "conv  → onnx" in told.stdout


def test_a_build_that_is_not_in_the_folder_is_not_offered_for_export(folder: Path, ask: CommandLine) -> None:
    made = report_file.read(folder)
    kept = [each.model_copy(update={"artifact": f"artifacts/{each.cell.id}"}) for each in made.records]
    for has_builds in (True, False):
        report_file.write_json(made.model_copy(update={"records": kept}), folder)
        for record in kept:
            path = folder / record.artifact
            path.mkdir(parents=True) if has_builds else path.rmdir()
        status, out, _ = ask()
        assert status == 0 and ("bakeoff export" in out) is has_builds


def test_figures_that_cannot_be_drawn_cost_neither_the_verdict_nor_the_numbers(folder: Path, ask: CommandLine) -> None:
    """The verdict is said before anything is drawn."""
    without_verdicts(folder)
    (folder / "figures").write_text("in the way")
    status, out, _ = ask()
    assert status == 1 and "onnx wins" in out
    assert report_file.read(folder).verdicts[0].winner == "onnx"


@pytest.mark.slow
def test_a_reader_who_leaves_costs_no_file(folder: Path) -> None:
    without_verdicts(folder)
    (folder / "report.md").unlink()
    reader, writing_end = os.pipe()
    os.close(reader)
    with open(writing_end, "wb") as closed:
        subprocess.run([sys.executable, str(ROOT / "runner.py"), "report", str(folder)], stdout=closed, timeout=120)
    assert report_file.read(folder).verdicts[0].winner == "onnx"
    assert (folder / "report.md").exists() and (folder / "report.html").exists()


def test_costs_are_reported_over_so_many_calls(folder: Path, ask: CommandLine) -> None:
    said = " ".join(ask("--keep", "--calls", 100_000)[1].split())
    answer = re.search(r"→ onnx (\S+) s for 100,000 calls (1\.8\dx) eager", said)
    assert answer and "= From a cold start eager costs least up to call" in said
    for name in ("report.md", "details.md"):
        row = re.search(r"^\| 100,000 \| (.*)$", (folder / name).read_text(encoding="utf-8"), flags=re.M)
        assert row and f"{answer[1]}\\*" in row[1]  # one number for one thing
    assert answer[0] in " ".join(ask()[1].split()), "the number is kept"
    assert "for 100,000 calls" not in ask("--keep", "--calls", 0)[1]


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "asked", [("--calls", "100000"), ("--require", "median_ms<2, build_s>5"), ("--accept", "rmse<5")]
)
def test_a_question_changes_nothing_on_disk(folder: Path, ask: CommandLine, asked: tuple[str, str]) -> None:
    _, plain, _ = ask()
    before = files_of(folder)
    status, answer, _ = ask(*asked)
    assert status == 0 and answer != plain and "--keep" in answer and "report.md" not in answer
    assert files_of(folder) == before


@pytest.mark.parametrize(
    ("asked", "said"), [(("--calls", "-1"), "'--calls'"), (("--require", "p9_ms<5"), "did you mean 'p99_ms'?")]
)
def test_what_cannot_be_asked_is_refused_and_nothing_is_written(
    folder: Path, ask: CommandLine, asked: tuple[str, str], said: str
) -> None:
    before = files_of(folder)
    assert said in complaint(ask(*asked))
    assert files_of(folder) == before


@pytest.mark.slow
def test_figures_of_several_reports_go_together_into_a_folder(folder: Path, ask: CommandLine) -> None:
    assert ask("--figures")[0] == 0
    status, out, _ = ask(folder / "report.json", "--figures", "--out", folder / "paper")
    alone, together = (folder / name / "latency.svg" for name in ("figures", "paper"))
    assert together.stat().st_size > 1.5 * alone.stat().st_size
    assert status == 0 and f"Figures: {folder / 'paper'}" in out


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--figures"], "name a folder for them by --out"), (["--out", "paper"], "join runs without a contest in common")],
)
def test_several_reports_need_a_folder_for_their_figures_and_no_contest_in_common(
    folder: Path, ask: CommandLine, options: list[str], said: str
) -> None:
    assert said in complaint(ask(folder, *options))


def test_a_report_with_nothing_to_draw_says_so(tmp_path: Path, command_line: CommandLine) -> None:
    writer.write(report([failed(cell("onnx"), Status.CRASH, "signal 11")]), tmp_path, figures=False)
    assert "nothing to draw" in complaint(command_line("report", tmp_path, "--figures"))


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sequence[str], Sequence[str]]]:
    """What the doctor is asked for; it finds ONNX Runtime broken, and says so where that was named."""
    asked: list[tuple[Sequence[str], Sequence[str]]] = []

    def examine(backends: Sequence[str], devices: Sequence[str], say: Callable[[str], None]) -> Diagnosis:
        say("trying onnx on cpu")
        asked.append((backends, devices))
        trial = BackendTrial(
            backend="onnx", device="cpu", outcome=Outcome.FAIL, status=Status.CRASH, reason="died of signal 11"
        )
        broken = ["onnx on cpu"] if "onnx" in backends else []
        return Diagnosis(created_at="now", facts=Facts(python="3.12.3"), trials=[trial], findings=[], broken=broken)

    monkeypatch.setattr("bakeoff.doctor.examine.examine", examine)
    return asked


def test_a_table_for_people(examined: list[object], command_line: CommandLine) -> None:
    status, said, steps = command_line("doctor")
    assert (status, examined) == (0, [((), ())])
    assert steps == "trying onnx on cpu\n", "also into a pipe"
    assert "FAIL" in said and "died of signal 11" in said
    assert said.splitlines()[-1] == "0 passed, 1 failed, 0 absent"


def test_what_was_named_and_is_broken_decides_the_exit_status(
    examined: list[object], command_line: CommandLine
) -> None:
    status, said, _ = command_line("doctor", "--backends", "eager,onnx", "--devices", "cpu")
    assert (status, examined) == (1, [(("eager", "onnx"), ("cpu",))])
    assert said.splitlines()[-1].endswith("You asked for these, and they do not work: onnx on cpu")


def test_json_and_nothing_else(examined: list[object], command_line: CommandLine) -> None:
    status, out, _ = command_line("doctor", "--json", "--backends", "onnx")
    found = json.loads(out)
    assert status == 1 and found["broken"] == ["onnx on cpu"] and found["trials"][0]["outcome"] == "fail"
