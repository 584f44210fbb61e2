"""A failure of a library without a message is told by the place that raised it."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bakeoff.measuring import isolation
from bakeoff.measuring.worker.worker_context import IN_INFERENCE_MODE, explain, last_frame_below, last_frame_of_program
from bakeoff.records.errors import Unsupported, os_reason
from bakeoff.records.failure import DISK_FULL
from bakeoff.records.schema import Status


class InductorError(Exception):
    """What Inductor raises for an error of its own: the other error's name and message."""


def lower(size: int) -> int:
    assert size > 0
    return size


def failed(error: Exception) -> Exception:
    """Return the error as Inductor raises it: with the traceback of its cause, and without the cause."""
    return InductorError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)


def test_an_assertion_without_a_message_names_its_place() -> None:
    try:
        lower(0)
    except AssertionError as error:
        status, failure = explain(failed(AssertionError().with_traceback(error.__traceback__)))
    assert status is Status.ERROR
    assert failure.text.startswith("InductorError: AssertionError, raised in lower (test_explaining.py, line ")
    assert failure.text.endswith(": assert size > 0)")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such size."), "ValueError: no such size"),
        (Unsupported("there is only one size."), "there is only one size"),
        (ValueError("no such\nlabel | file"), "ValueError: no such label | file"),
        (ValueError("first\n" + "more\n" * 9), "ValueError: first"),
    ],
)
def test_a_short_message_is_told_whole_and_a_long_one_by_its_first_line(error: Exception, text: str) -> None:
    assert explain(error)[1].text == text


def test_a_variable_that_is_not_set_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(name: str) -> str:
        try:
            try:
                os.environ[name]
            except KeyError as error:
                raise RuntimeError("no weights") from error
        except RuntimeError as error:
            return explain(error)[1].text
        raise AssertionError(f"{name} is set")

    monkeypatch.delenv("TORCH_WEIGHTS_OF_MINE", raising=False)
    told = "the environment variable MY_MODEL_DIR is not set: set it before you start bakeoff"
    assert reason("MY_MODEL_DIR") == f"RuntimeError: no weights, because of KeyError: 'MY_MODEL_DIR': {told}"
    withheld = "Bakeoff passes TORCH_WEIGHTS_OF_MINE on to no process, because it may change what is measured"
    assert reason("TORCH_WEIGHTS_OF_MINE").endswith(f"{withheld}: use another name")
    assert "environment variable" not in explain(KeyError("MY_MODEL_DIR"))[1].text


def saved_for_backward(x: torch.Tensor) -> object:
    with torch.inference_mode(False), torch.enable_grad():
        return torch.ones(3, requires_grad=True) * x


def version_of(x: torch.Tensor) -> object:
    return x._version


@pytest.mark.parametrize("lacking", [version_of, saved_for_backward])
def test_what_inference_mode_lacks_is_told_with_a_way_that_works(lacking: Callable[[torch.Tensor], object]) -> None:
    with torch.inference_mode():
        given = torch.ones(3)
        with pytest.raises(RuntimeError) as raised:
            lacking(given)
        assert explain(raised.value)[1].text.endswith(f": {IN_INFERENCE_MODE}")
        with torch.inference_mode(False):
            lacking(given.clone())


def test_the_place_of_a_variable_that_is_not_set_is_the_users_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames of `<frozen os>` resolve to a file in the folder that the user stands in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MY_MODEL_DIR", raising=False)
    file, names = tmp_path / "net.py", dict[str, Any]()
    exec(compile("import os\ndef factory():\n    return os.environ['MY_MODEL_DIR']\n", str(file), "exec"), names)
    with pytest.raises(KeyError) as raised:
        names["factory"]()
    assert last_frame_below(tmp_path, raised.value, file) == "net.py, line 3, in factory"


def chained(told: str, cause: Exception) -> Exception:
    try:
        raise RuntimeError(told) from cause
    except RuntimeError as error:
        return error


def test_the_first_cause_of_a_chain_is_told_once() -> None:
    cause = OSError("disk is full")
    assert explain(chained("no build", cause))[1].text == "RuntimeError: no build, because of OSError: disk is full"
    assert explain(chained("no build: disk is full", cause))[1].text == "RuntimeError: no build: disk is full"


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("/home/me/net.py", "net.py, line 2, in forward"),
        ("/tmp/ipykernel_914/1039087647.py", "a cell of the notebook, line 2, in forward"),
    ],
)
def test_the_last_line_of_the_program_is_told_and_none_of_a_library(file: str, place: str) -> None:
    names: dict[str, Any] = {}
    exec(compile("def forward(x):\n    return x.reshape(3, 5)", file, "exec"), names)
    with pytest.raises(RuntimeError, match="invalid for input of size 16") as raised:
        torch.func.functional_call(Calling(names["forward"]), {}, torch.ones(2, 8))
    assert last_frame_of_program(raised.value) == place


class Calling(torch.nn.Module):
    def __init__(self, forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.forward = forward


def test_a_process_that_may_not_open_more_files_is_told_what_to_do() -> None:
    error = OSError(errno.EMFILE, "Too many open files", "weights.bin")
    assert explain(error)[1].text.endswith("'weights.bin': " + os_reason(error))
    assert "ulimit -n" in os_reason(error) and "ulimit" not in explain(OSError(errno.ENOSPC, "disk is full"))[1].text


@pytest.mark.parametrize(
    "message",
    ["[Errno 28] No space left on device: 'x'", "I/O error: No space left on device (os error 28)",
     "C++ compile error\nFatal error: can't write to x.o: 'No space left on device'\nx.s: error: no such file"],
    ids=["system", "safetensors", "compiler"],
)  # fmt: skip
def test_a_full_disk_is_known_by_what_any_error_of_the_chain_says(message: str) -> None:
    status, failure = explain(RuntimeError(message))
    assert (status, failure.kind) == (Status.ERROR, DISK_FULL) and failure.text.endswith(": a disk is full, make room")
    assert explain(chained("no build", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))[1].kind == DISK_FULL
    assert explain(RuntimeError("unexpected pos 576 vs 534"))[1].kind == "RuntimeError"


def test_a_full_disk_is_known_by_its_free_space_where_a_library_tells_something_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert not isolation.has_full_disk(tmp_path)
    monkeypatch.setattr(isolation, "FULL_BYTES", 2**62)
    assert explain(RuntimeError("unexpected pos 576 vs 534"))[1].kind == DISK_FULL
