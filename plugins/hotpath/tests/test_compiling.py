"""The process that compiles: how it ends, what it leaves, and, slowly, that it compiles."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch._inductor.exc import InductorError

from bakeoff_hotpath import child, enable_hot_path_detection
from bakeoff_hotpath.child import RESULT
from bakeoff_hotpath.compiling import Call, Compilation, InductorBeside, Outcome
from bakeoff_hotpath.knowledge import Measured
from bakeoff_hotpath.packages import difference, differentiable
from plugins.hotpath.tests.fakes import Pointwise, make_compiling_cheap, until_compiled

SOURCES = Path(__file__).parents[1] / "src"
CHECKOUT = Path(__file__).parents[3]
"""It has links such as `models` at its top."""

LINEAR = Call(torch.nn.Linear(2, 2), (torch.ones(2),), {}, is_training=False)


class Unreadable(torch.nn.Module):
    """It is pickled without complaint, and refuses to be read."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise ValueError("it was written here and is read there")


class Unwritable(torch.nn.Module):
    def __getstate__(self) -> dict[str, Any]:
        raise OSError(28, "No space left on device")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "path"


@pytest.fixture
def job(folder: Path) -> Iterator[Compilation]:
    """A compilation that has begun, and is far from its end."""
    job = InductorBeside().start(LINEAR, folder)
    assert isinstance(job, Compilation)
    yield job
    job.cancel()


def making(folder: Path) -> Path:
    """Return the unfinished folder of the only compilation."""
    (found,) = folder.parent.iterdir()
    return found


def outcome_of(poll: Callable[[], Outcome | None]) -> Outcome:
    end = time.monotonic() + 120
    while (outcome := poll()) is None:
        assert time.monotonic() < end, "it goes on"
        time.sleep(0.02)
    return outcome


def test_a_failure_in_the_compiling_process_is_reported_here(folder: Path) -> None:
    compiler = InductorBeside()
    job = compiler.start(Call(Unreadable(), (torch.ones(2),), {}, is_training=False), folder)
    assert not compiler.is_free()
    outcome = outcome_of(job.poll)
    assert outcome.reason == "ValueError: it was written here and is read there" and outcome.is_for_good
    assert compiler.is_free() and list(folder.parent.iterdir()) == []


@pytest.mark.parametrize(("signal", "is_removed"), [(11, False), (9, True)])
def test_a_compiler_that_dies_leaves_a_reason(signal: int, is_removed: bool, job: Compilation, folder: Path) -> None:
    if is_removed:
        shutil.rmtree(making(folder))
    os.kill(job.pid, signal)
    outcome = outcome_of(job.poll)
    assert outcome.reason.startswith(f"the compiler died with status -{signal}")
    assert not outcome.is_for_good, "another run may do better"
    assert list(folder.parent.iterdir()) == []


def test_a_compilation_that_has_ended_keeps_nobody_waiting_and_is_timed_by_its_own_clock(folder: Path) -> None:
    compiler = InductorBeside()
    job = compiler.start(LINEAR, folder)
    assert isinstance(job, Compilation)
    result = {"ok": True, "seconds": 20.0, "load_s": 0.1, "eager_s": 2.0, "compiled_s": 1.0}
    (making(folder) / RESULT).write_text(json.dumps(result))
    os.kill(job.pid, 9)
    end = time.monotonic() + 20
    while not compiler.is_free():
        assert time.monotonic() < end, "though it has ended"
        time.sleep(0.02)
    assert job.poll() == Outcome("", Measured(compile_s=20.0, load_s=0.1, eager_s=2.0, compiled_s=1.0))
    assert (folder / RESULT).is_file()


def test_a_fork_of_the_program_neither_ends_nor_removes_what_it_has_not_started(job: Compilation, folder: Path) -> None:
    if (fork := os.fork()) == 0:  # the fork must end before pytest can go on in it
        outcome = job.poll()
        is_told = outcome is not None and "a fork of" in outcome.reason and not outcome.is_for_good
        job.cancel()
        os._exit(0 if is_told else 1)
    _, status = os.waitpid(fork, 0)
    assert status == 0 and making(folder).is_dir() and psutil.pid_exists(job.pid) and job.poll() is None


def test_a_cancelled_compilation_leaves_nothing_behind(job: Compilation, folder: Path) -> None:
    process = psutil.Process(job.pid)
    job.cancel()
    assert not process.is_running() and list(folder.parent.iterdir()) == []
    assert outcome_of(job.poll).reason == "it was called off"


def test_a_compilation_that_cannot_be_started_leaves_nothing_behind(folder: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        InductorBeside().start(Call(Unwritable(), (torch.ones(2),), {}, is_training=False), folder)
    assert list(folder.parent.iterdir()) == []


USERS_PROGRAM = f"""
import sys, time
from pathlib import Path
sys.path += ["{SOURCES}", "{CHECKOUT}"]  # last, as a program of somebody else may have them
import torch
import models
from bakeoff_hotpath.compiling import Call, InductorBeside
job = InductorBeside().start(Call(models.Mine(), (torch.ones(2),), {{}}, is_training=False), Path(sys.argv[1]) / "path")
while (outcome := job.poll()) is None:
    time.sleep(0.02)
print(outcome.reason)
"""


@pytest.mark.slow
def test_a_users_module_with_the_name_of_one_of_this_repository_is_the_users(tmp_path: Path) -> None:
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


def test_only_the_backend_imports_bakeoff_and_nothing_but_its_door() -> None:
    sources = {file.stem: file.read_text() for file in (SOURCES / "bakeoff_hotpath").glob("*.py")}
    imported = {
        name: set(re.findall(r"^\s*(?:from|import) (bakeoff\b[.\w]*)", text, re.M)) for name, text in sources.items()
    }
    assert {name: modules for name, modules in imported.items() if modules} == {"backend": {"bakeoff"}}


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (OSError(28, "No space left on device"), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("CUDA error: out of memory"), True),  # AcceleratorError, which says so in its words alone
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"), True),
        (InductorError(OSError(28, "No space left on device"), None), True),
        (InductorError(RuntimeError("no kernel"), None), False),
        (ModuleNotFoundError("No module named 'mine'"), False),
        (ValueError("it has outputs without gradients"), False),
    ],
)
def test_a_failure_may_pass_where_memory_or_disk_was_full(error: Exception, may_pass: bool) -> None:
    assert child.may_pass(error) is may_pass


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
    """The function is x * w: the forward saves both, the backward returns a gradient for w alone."""
    seen: list[torch.Tensor] = []

    def forward(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        w, x = tensors
        return [w * x, x]

    def backward(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        saved, tangent = tensors
        seen.append(tangent)
        return [saved * tangent]

    function = differentiable(forward, backward, {"outputs": 1, "gradients": [0], "tangents": [[1]]})
    w, x = torch.ones(3, requires_grad=True), torch.arange(3.0)
    (output,) = function(w, x)
    output.sum().backward()
    assert w.grad is not None and torch.equal(w.grad, x) and x.grad is None
    assert seen[0].stride() == (1,), "as it was compiled for, and not expanded as the sum's gradient is"


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    return make_compiling_cheap(tmp_path / "learned")


@pytest.mark.slow
def test_inference_is_compiled_and_computes_the_same(cache: Path) -> None:
    module, rows = Pointwise(), torch.randn(16, 256)
    with torch.no_grad(), enable_hot_path_detection(module, cache=cache) as hot:
        expected = module(rows)
        until_compiled(hot, lambda: module(rows))
        torch.testing.assert_close(module(rows), expected)
        module.scale.mul_(1.5)
        changed = module(rows)
    with torch.no_grad():
        torch.testing.assert_close(changed, module(rows))


@pytest.mark.slow
def test_training_is_compiled_forward_and_backward(cache: Path) -> None:
    module, rows = Pointwise(), torch.randn(16, 256)

    def step() -> list[torch.Tensor]:
        module.zero_grad()
        module(rows).square().mean().backward()
        return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]

    with enable_hot_path_detection(module, cache=cache) as hot:
        expected = step()
        until_compiled(hot, step)
        assert hot.report()[0].is_training
        for ours, theirs in zip(step(), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
