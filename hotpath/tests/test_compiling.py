"""The process that compiles: how it ends, what it leaves, and, slowly, that it compiles."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import hotpath.deciding
import models
from hotpath import enable_hot_path_detection
from hotpath.child import RESULT, _may_pass, difference
from hotpath.compiling import Call, Compilation, InductorBeside, Job, Outcome
from hotpath.enabling import HotPaths
from hotpath.packages import _differentiable

ROOT = Path(__file__).parents[2]


class Unreadable(torch.nn.Module):
    """Pickled without complaint, and refuses to be read."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise ValueError("it was written here and is read there")


def outcome_of(job: Job, seconds: float = 120) -> Outcome:
    end = time.monotonic() + seconds
    while (outcome := job.poll()) is None:
        assert time.monotonic() < end, "it goes on"
        time.sleep(0.02)
    return outcome


def test_what_fails_there_is_told_here(tmp_path: Path) -> None:
    compiler = InductorBeside()
    job = compiler.start(Call(Unreadable(), (torch.ones(2),), {}, is_training=False), tmp_path / "path")
    assert not compiler.is_free()
    outcome = outcome_of(job)
    assert outcome.reason == "ValueError: it was written here and is read there" and outcome.is_for_good
    assert compiler.is_free() and list(tmp_path.iterdir()) == []


def test_a_compiler_that_dies_leaves_a_reason(tmp_path: Path) -> None:
    compiler = InductorBeside()
    job = compiler.start(Call(torch.nn.Linear(2, 2), (torch.ones(2),), {}, is_training=False), tmp_path / "path")
    assert isinstance(job, Compilation)
    os.kill(job._process.pid, 11)
    outcome = outcome_of(job)
    assert outcome.reason.startswith("the compiler died with status -11")
    assert not outcome.is_for_good, "another run may do better"


def test_whoever_has_ended_keeps_nobody_waiting_and_is_timed_by_its_own_clock(tmp_path: Path) -> None:
    compiler = InductorBeside()
    job = compiler.start(Call(torch.nn.Linear(2, 2), (torch.ones(2),), {}, is_training=False), tmp_path / "path")
    assert isinstance(job, Compilation)
    result = {"ok": True, "seconds": 20.0, "load_s": 0.1, "eager_s": 2.0, "compiled_s": 1.0}
    os.kill(job._process.pid, 9)
    job._process.wait()
    (job._making / RESULT).write_text(json.dumps(result))
    assert compiler.is_free(), "though nobody has asked how it ended"
    assert job.poll() == Outcome("", compile_s=20.0, load_s=0.1, eager_s=2.0, compiled_s=1.0)


def wrapping(error: Exception) -> Exception:
    from torch._inductor.exc import InductorError

    return InductorError(error, None)


def test_a_folder_that_is_removed_meanwhile_is_told_and_raises_nothing(tmp_path: Path) -> None:
    compiler = InductorBeside()
    job = compiler.start(Call(torch.nn.Linear(2, 2), (torch.ones(2),), {}, is_training=False), tmp_path / "path")
    assert isinstance(job, Compilation)
    shutil.rmtree(job._making)
    os.kill(job._process.pid, 9)
    outcome = outcome_of(job)
    assert "died with status -9" in outcome.reason and not outcome.is_for_good


def test_a_fork_of_the_program_neither_ends_nor_removes_what_it_has_not_started(tmp_path: Path) -> None:
    compiler = InductorBeside()
    job = compiler.start(Call(torch.nn.Linear(2, 2), (torch.ones(2),), {}, is_training=False), tmp_path / "path")
    assert isinstance(job, Compilation)
    if (fork := os.fork()) == 0:  # in the child everything must be over before pytest could get there
        outcome = job.poll()
        is_told = outcome is not None and "a fork of" in outcome.reason and not outcome.is_for_good
        os._exit(0 if is_told and job.has_ended and _stops_nothing(job) else 1)
    _, status = os.waitpid(fork, 0)
    assert status == 0 and job._making.is_dir() and job._process.poll() is None
    job.cancel()
    assert list(tmp_path.iterdir()) == []


def _stops_nothing(job: Compilation) -> bool:
    job._stop()
    return job._making.is_dir()


def test_what_cannot_be_started_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(subprocess, "Popen", full)
    with pytest.raises(OSError, match="No space left"):
        InductorBeside().start(Call(torch.nn.Linear(2, 2), (torch.ones(2),), {}, is_training=False), tmp_path / "path")
    assert list(tmp_path.iterdir()) == []


USERS_PROGRAM = f"""
import sys, time
from pathlib import Path
sys.path.append("{ROOT}")  # last, as a program of somebody else may have it
import torch
import models
from hotpath.compiling import Call, InductorBeside
job = InductorBeside().start(Call(models.Mine(), (torch.ones(2),), {{}}, is_training=False), Path(sys.argv[1]) / "path")
while (outcome := job.poll()) is None:
    time.sleep(0.02)
print(outcome.reason)
"""


def test_a_users_module_of_the_same_name_as_one_of_ours_is_the_users(tmp_path: Path) -> None:
    program, elsewhere = tmp_path / "program", tmp_path / "elsewhere"
    (program / "models").mkdir(parents=True)
    elsewhere.mkdir()
    (program / "main.py").write_text(USERS_PROGRAM)
    (program / "models" / "__init__.py").write_text(
        "import torch\n"
        "class Mine(torch.nn.Module):\n"
        "    def __setstate__(self, state):\n"
        "        raise ValueError('the users own is read')\n"
    )
    command = [sys.executable, str(program / "main.py"), str(tmp_path)]
    done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "ValueError: the users own is read", done.stdout + done.stderr


def test_compiling_imports_nothing_of_the_rest() -> None:
    sources = [file.read_text() for file in (ROOT / "hotpath").glob("*.py")]
    ours = re.compile(r"^\s*(from|import) (backends|harness|models|reports|benchmarks)\b", re.MULTILINE)
    assert sources and not any(ours.search(source) for source in sources)


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (OSError(28, "No space left on device"), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("CUDA error: out of memory"), True),  # AcceleratorError, which says so in its words alone
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"), True),
        (wrapping(OSError(28, "No space left on device")), True),
        (wrapping(RuntimeError("no kernel")), False),
        (RuntimeError("no kernel"), False),
        (ModuleNotFoundError("No module named 'mine'"), False),
        (ValueError("it has outputs without gradients"), False),
    ],
)
def test_what_was_full_may_be_free_another_time(error: Exception, may_pass: bool) -> None:
    assert _may_pass(error) is may_pass


def test_calling_it_off_leaves_nothing_behind(tmp_path: Path) -> None:
    compiler = InductorBeside()
    job = compiler.start(Call(torch.nn.Linear(2, 2), (torch.ones(2),), {}, is_training=False), tmp_path / "path")
    assert isinstance(job, Compilation)
    process = psutil.Process(job._process.pid)
    job.cancel()
    assert not process.is_running() and list(tmp_path.iterdir()) == []
    assert compiler.is_free() and outcome_of(job).reason == "it was called off"
    job.cancel()


def test_rounding_is_no_difference_and_anything_else_is() -> None:
    ones = torch.ones(4)
    assert difference([ones * 1.0001], [ones]) == ""
    assert "1 tensors instead of 2" in difference([ones], [ones, ones])
    assert "tensor 0 is off by" in difference([ones * 1.1], [ones])
    assert "has other values" in difference([torch.tensor([1])], [torch.tensor([2])])
    broken = torch.tensor([float("nan"), 1, 1, 1])
    assert "other NaNs" in difference([broken], [torch.tensor([0.0, 1, 1, 1])])
    assert difference([broken], [broken]) == ""


def test_two_packages_are_one_function_with_a_gradient() -> None:
    """x * w: the forward saves both, the backward returns a gradient for w alone."""

    def forward(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        w, x = tensors
        return [w * x, x]

    seen: list[torch.Tensor] = []

    def backward(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        saved, tangent = tensors
        seen.append(tangent)
        return [saved * tangent]

    function = _differentiable(forward, backward, {"outputs": 1, "gradients": [0], "tangents": [[1]]})
    w, x = torch.ones(3, requires_grad=True), torch.arange(3.0)
    (output,) = function(w, x)
    output.sum().backward()
    assert w.grad is not None and torch.equal(w.grad, x) and x.grad is None
    assert seen[0].stride() == (1,), "as it was compiled for, and not expanded as the sum's gradient is"


@pytest.fixture
def cheap_to_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """So that it is compiled at once, and taken up whatever it gains on a busy machine."""
    for bound in ("CLEARLY_SLOWER", "FASTER"):
        monkeypatch.setattr(hotpath.deciding, bound, 0.0)
    monkeypatch.setattr(hotpath.deciding.Trial, "is_won", True)
    monkeypatch.setattr(hotpath.deciding.Expectation, "is_worth", lambda expectation, delay_s: True)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    return tmp_path / "learned"


def until_settled(hot: HotPaths, step: Any) -> None:
    end = time.monotonic() + 240
    while not hot.is_settled:
        assert time.monotonic() < end, hot.report()
        step()


@pytest.mark.slow
def test_inference_is_compiled_and_computes_the_same(cheap_to_compile: Path) -> None:
    family = models.find("mixed_ops")
    loaded = family.load(family.resolve({"layers": 1}), 0)
    module, (rows,) = loaded.module, loaded.inputs[0].args
    with torch.no_grad(), enable_hot_path_detection(module, cache=cheap_to_compile) as hot:
        expected = module(rows)
        until_settled(hot, lambda: module(rows))
        assert [report.runs for report in hot.report()] == ["compiled"], hot.report()
        torch.testing.assert_close(module(rows), expected)
        for parameter in module.parameters():
            parameter.mul_(1.5)
        changed = module(rows)
    with torch.no_grad():
        torch.testing.assert_close(changed, module(rows))


@pytest.mark.slow
def test_training_is_compiled_forward_and_backward(cheap_to_compile: Path) -> None:
    family = models.find("mlp")
    loaded = family.load(family.resolve({}), 0)
    module, (rows,) = loaded.module, loaded.inputs[0].args

    def step() -> list[torch.Tensor]:
        module.zero_grad()
        module(rows).square().mean().backward()
        return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]

    with enable_hot_path_detection(module, cache=cheap_to_compile) as hot:
        expected = step()
        until_settled(hot, step)
        assert [(report.runs, report.is_training) for report in hot.report()] == [("compiled", True)], hot.report()
        for ours, theirs in zip(step(), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
